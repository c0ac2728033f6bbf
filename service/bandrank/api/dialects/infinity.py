"""infinity's dialect: like Cohere's, but documents come back as texts, and the faults of a request as a list.

Its clients post the same body to the same path as other services' clients, so it has a path of its own: the base URL
of a client that needs texts ends with /infinity.
"""

import time
import uuid

from pydantic import BaseModel

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, Flag, Texts
from bandrank.api.dialects.foreign import ForeignRequest, RankedText, call_of
from bandrank.api.error_bodies import FaultsBody
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class InfinityRequest(ForeignRequest):
    """A query and documents. raw_scores: whether scores are the scorer's own and not their sigmoid."""

    documents: Texts
    top_n: AnyLimit = None
    return_documents: Flag = False
    raw_scores: Flag = False


class InfinityResponse(BaseModel):
    """Documents from most to least relevant. model: the one that ranked. created: in seconds since 1970."""

    object: str = "rerank"
    results: list[RankedText]
    model: str
    usage: Usage
    id: str
    created: int


def read(request: InfinityRequest) -> Call:
    """The call of a request."""
    return call_of(
        request,
        request.documents,
        top_n=request.top_n,
        return_texts=request.return_documents,
        raw_scores=request.raw_scores,
    )


def write(exchange: Exchange[InfinityRequest]) -> bytes:
    """The JSON of the InfinityResponse."""
    response = InfinityResponse(
        results=[RankedText(*each) for each in exchange.ranked],
        model=exchange.answer.model,
        usage=Usage.of(exchange.answer.ranking.num_tokens),
        id=f"infinity-{uuid.uuid4()}",
        created=int(time.time()),
    )
    return json_of(response)


INFINITY = Dialect(InfinityRequest, InfinityResponse, read, write, invalid=FaultsBody)
