"""The words that sentence-transformers puts before texts, from config_sentence_transformers.json."""

import re
from collections.abc import Mapping
from typing import Any

from bandrank.models.checkpoint import read_object
from bandrank.models.hf.model import Model
from bandrank.models.wording import INSTRUCTION, TEXT, Wording

# In order of precedence; of e5-mistral-7b-instruct's and stella_en_400M_v5's, several are for queries.
QUERY_PROMPTS = ("query", "retrieval.query", "web_search_query", "s2p_query")
DOCUMENT_PROMPTS = ("document", "passage", "corpus", "retrieval.passage")


def wordings(library: Mapping[str, Any]) -> tuple[Wording, Wording]:
    """The wordings of a query, whose task is an instruction, and of a document.

    If neither side has a prompt of its own, both get the one that `default_prompt_name` names. This departs from
    sentence-transformers, on purpose, since a folder's author wrote the prompts to be used: beside a prompt "passage"
    without a "document", its encode_document takes an empty "document"; encode_query takes neither "web_search_query"
    nor "s2p_query"; and if there is only the default prompt, encode_query and encode_document use none.
    Raises ValueError for a prompt that is not a text.
    """
    prompts = library.get("prompts") or {}
    for name, prompt in prompts.items():
        if not isinstance(prompt, str | None):
            raise ValueError(f"the prompt {name!r} must be a text, got {prompt!r}")  # noqa: TRY004  # a bad value
    query, document = (_first(prompts, names) for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS))
    if not query + document:
        query = document = prompts.get(library.get("default_prompt_name")) or ""
    if match := re.fullmatch(r"(Instruct: )(.+)(\nQuery: ?)", query):
        return Wording(query + TEXT, match[1] + INSTRUCTION + match[3] + TEXT), Wording(document + TEXT)
    return Wording(query + TEXT), Wording(document + TEXT)


def default_prompt(model: Model) -> str:
    """The prompt that a re-ranker's folder names as the default; empty if there is none. Raises BadCheckpoint."""
    library = read_object(model.folder / "config_sentence_transformers.json", optional=True)
    return str((library.get("prompts") or {}).get(library.get("default_prompt_name")) or "")


def require_no_prompt(model: Model, known: str = "") -> str:
    """The default prompt of a re-ranker, which is empty or `known`. Raises BadCheckpoint for another one."""
    if (prompt := default_prompt(model)) not in ("", known):
        raise model.refuse(f"a re-ranker with the default prompt {prompt!r} is not supported")
    return prompt


def _first(prompts: Mapping[str, str | None], names: tuple[str, ...]) -> str:
    return next((prompt for name in names if (prompt := prompts.get(name))), "")
