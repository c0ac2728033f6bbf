"""Finds the words of the user in a query of OpenSearch or Elasticsearch."""

from collections.abc import Iterator, Mapping
from typing import Any

from bandrank.proxy.outcomes import Skipped, SkipReason
from bandrank.proxy.rank_windows import JOINING
from bandrank.proxy.raw_json import Number

# {"match": {"title": "words"}} or {"match": {"title": {"query": "words"}}}; the member with the words differs.
BY_FIELD = {
    "match": "query",
    "match_bool_prefix": "query",
    "match_phrase": "query",
    "match_phrase_prefix": "query",
    "neural": "query_text",
    "neural_sparse": "query_text",
    "text_expansion": "model_text",
}
# {"multi_match": {"query": "words", "fields": […]}}
PLAIN = frozenset(
    {"combined_fields", "multi_match", "query_string", "semantic", "simple_query_string", "sparse_vector"}
)
# Clauses that contain others, and the members with these. bool's filter and must_not have no bearing on relevance.
AROUND = {
    "bool": ("must", "should"),
    "boosting": ("positive",),
    "dis_max": ("queries",),
    "function_score": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "hybrid": ("queries",),
    "nested": ("query",),
    "script_score": ("query",),
}


def query_text(body: Mapping[str, Any]) -> str:
    """The one text that a search is for. Raises Skipped if there is none, or more than one."""
    texts = set(_of_clause(body.get("query"))) | set(_of_retriever(body.get("retriever")))
    texts = {text for text in texts if text.strip()}
    if len(texts) > 1:
        raise Skipped(SkipReason.AMBIGUOUS_QUERY)
    if not texts:
        raise Skipped(SkipReason.NO_QUERY)
    return texts.pop()


def _of_clause(clause: object) -> Iterator[str]:
    """The texts in a clause of the query language, or in a list of them."""
    if isinstance(clause, list):
        for each in clause:
            yield from _of_clause(each)
    for kind, content in clause.items() if isinstance(clause, dict) else ():
        if not isinstance(content, dict):
            continue
        if kind in PLAIN:
            yield from _text(content.get("query"))
        elif kind in BY_FIELD:
            for value in content.values():
                yield from _text(value.get(BY_FIELD[kind]) if isinstance(value, dict) else value)
        for name in AROUND.get(kind, ()):
            yield from _of_clause(content.get(name))


def _of_retriever(retriever: object) -> Iterator[str]:
    """The texts in an Elasticsearch retriever: a standard one, or one that joins several."""
    for kind, content in retriever.items() if isinstance(retriever, dict) else ():
        if not isinstance(content, dict):
            continue
        if kind == "standard":
            yield from _of_clause(content.get("query"))
        elif kind in JOINING:
            yield from _text(content.get("query"))
            for each in _listed(content.get("retrievers")):
                yield from _of_retriever(each)
        elif kind == "retriever":  # beside its weight
            yield from _of_retriever(content)


def _text(value: object) -> Iterator[str]:
    if isinstance(value, str) and not isinstance(value, Number):
        yield value


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
