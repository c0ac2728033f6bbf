"""The dialect of NVIDIA's NIM: texts in objects, and raw scores, which it calls logits.

No passage is too long, whatever `truncate` says.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, NonEmpty, Query
from bandrank.api.dialects.foreign import NamesModel
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.registry import CallCandidate


class NimQuery(BaseModel):
    """The query. text: not blank."""

    text: Query


@dataclass(slots=True)
class NimPassage:
    """A passage to rank."""

    text: str


class NimRequest(NamesModel):
    """A query and passages. Fields not named here are ignored, such as `truncate`; `top_k` is litellm's addition."""

    query: NimQuery
    passages: NonEmpty[NimPassage]
    top_k: AnyLimit = None


@dataclass(slots=True)
class NimRanking:
    """A ranked passage. index: its index in the request. logit: the scorer's own score."""

    index: int
    logit: float


class NimResponse(BaseModel):
    """Passages from most to least relevant."""

    rankings: list[NimRanking]
    usage: Usage


def read(request: NimRequest) -> Call:
    """The call of a request."""
    return Call(
        query=request.query.text,
        candidates=[CallCandidate(passage.text) for passage in request.passages],
        top_n=request.top_k,
        model=request.model,
        any_model=True,
        raw_scores=True,
    )


def write(exchange: Exchange[NimRequest]) -> bytes:
    """The JSON of the NimResponse."""
    rankings = [NimRanking(index, score) for index, score, _ in exchange.ranked]
    return json_of(NimResponse(rankings=rankings, usage=Usage.of(exchange.answer.ranking.num_tokens)))


NIM = Dialect(NimRequest, NimResponse, read, write, fields=("passages",))
