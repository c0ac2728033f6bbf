"""vLLM's dialect for scoring pairs: pairs of texts in, a score for each out, in the same order.

The two sides of the pairs go by four pairs of names. A single text on the first side is paired with each on the second;
otherwise the sides are equally long and paired one by one.
"""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import NonEmpty, Query, Texts
from bandrank.api.dialects.foreign import NamesModel
from bandrank.api.dialects.parts import A_QUERY, A_TEXT, Schema, each_joined
from bandrank.api.dialects.vllm import VllmRequest, warnings_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.registry import CallCandidate
from bandrank.errors import InvalidInput

SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
NOT_NULL: JsonDict = {"type": ["string", "array", "object"]}


def _texts(one: Schema) -> WithJsonSchema:
    """The schema of one or several texts.  one: the schema of a text."""
    return WithJsonSchema({"anyOf": [one, {"type": "array", "minItems": 1, "items": one}, {"type": "null"}]})


Side = Annotated[str | Texts | None, Field(union_mode="left_to_right"), BeforeValidator(each_joined), _texts(A_TEXT)]
Queries = Annotated[
    Query | NonEmpty[Query] | None, Field(union_mode="left_to_right"), BeforeValidator(each_joined), _texts(A_QUERY)
]
A_PAIR_OF_SIDES: JsonDict = {
    "anyOf": [{"required": [*pair], "properties": dict.fromkeys(pair, NOT_NULL)} for pair in SIDES]
}


class PairsRequest(VllmRequest, NamesModel):
    """Pairs of texts, the first of which is the query.

    The two sides of the pairs are queries and documents, queries and items, data_1 and data_2, or text_1 and text_2. A
    single text on the first side is paired with each text on the second; otherwise both sides have equally many.
    """

    model_config = ConfigDict(json_schema_extra=A_PAIR_OF_SIDES)

    queries: Queries = None
    documents: Side = None
    items: Side = None
    data_1: Queries = None
    data_2: Side = None
    text_1: Queries = None
    text_2: Side = None

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """Both sides as lists, by the first pair of names that are both given."""
        return next(self._all_sides())

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [*self._all_sides()]
        if not given:
            raise ValueError(f"give both sides of the pairs, as {' or '.join(map(' and '.join, SIDES))}")
        if any(sides != given[0] for sides in given):
            raise ValueError("the sides of the pairs go by several names, under which they differ: give them once")
        return self

    def _all_sides(self) -> Iterator[tuple[list[str], list[str]]]:
        for names in SIDES:
            first, second = (getattr(self, name) for name in names)
            if first is not None and second is not None:
                yield _listed(first), _listed(second)


@dataclass(slots=True)
class PairScore:
    """The score of a pair. index: its index in the request."""

    index: int
    score: float
    object: str = "score"


class PairsMeta(BaseModel):
    """warnings: what the request asked for and did not get."""

    warnings: list[str]


class PairsResponse(BaseModel):
    """Scores in the order of the request.

    created: the time of the answer, in seconds since 1970. model: the one that scored. meta: absent if there are no
    warnings.
    """

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PairScore]
    usage: Usage
    meta: PairsMeta | None = None


def read(request: PairsRequest) -> Call:
    """The call of a request. Raises InvalidInput for sides that do not fit."""
    queries, texts = request.sides
    if len(queries) == 1:
        queries *= len(texts)
    if len(queries) != len(texts):
        raise InvalidInput(f"{len(queries)} texts cannot be paired with {len(texts)}: give as many, or one")
    return Call(
        query=queries[0],
        candidates=[CallCandidate(text, query=query) for query, text in zip(queries, texts, strict=True)],
        model=request.model,
        any_model=True,
        strategy=None,  # in a cascade or within a budget, scores depend on the other texts
        raw_scores=request.raw,
        options=request.options(),
    )


def write(exchange: Exchange[PairsRequest]) -> bytes:
    """The JSON of the PairsResponse."""
    warnings = warnings_of(exchange)
    response = PairsResponse(
        id=f"score-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=exchange.answer.model,
        data=[PairScore(*each) for each in enumerate(exchange.scores_as_sent)],
        usage=Usage.of(exchange.answer.ranking.num_tokens),
        meta=PairsMeta(warnings=warnings) if warnings else None,
    )
    return json_of(response)


def _listed(side: str | list[str]) -> list[str]:
    return [side] if isinstance(side, str) else [*side]


PAIR_SCORES = Dialect(PairsRequest, PairsResponse, read, write)
