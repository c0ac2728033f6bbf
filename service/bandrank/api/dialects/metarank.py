"""Metarank's dialect of cross-encoders: pairs of a query and a text in, raw scores in the same order out.

The scores are raw, as Metarank's own are.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import NonEmpty, Query
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.registry import CallCandidate


@dataclass(slots=True)
class MetarankPair:
    """A query, not blank, and a text to score for it."""

    query: Query
    text: str


class MetarankRequest(BaseModel):
    """Pairs to score. Fields not named here are ignored."""

    input: NonEmpty[MetarankPair]


class MetarankResponse(BaseModel):
    """The scorer's own score of each pair, in the order of the request. took: milliseconds."""

    took: int
    scores: list[float]


def read(request: MetarankRequest) -> Call:
    """The call of a request."""
    return Call(
        query=request.input[0].query,
        candidates=[CallCandidate(pair.text, query=pair.query) for pair in request.input],
        any_model=True,
        strategy=None,  # in a cascade or within a budget, scores depend on the other texts
        raw_scores=True,
    )


def write(exchange: Exchange[MetarankRequest]) -> bytes:
    """The JSON of the MetarankResponse."""
    return json_of(MetarankResponse(took=round(exchange.total_s * 1000), scores=exchange.scores_as_sent))


METARANK = Dialect(MetarankRequest, MetarankResponse, read, write)
