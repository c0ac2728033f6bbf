"""ZeroEntropy's dialect."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from bandrank.api.dialects.costs import timings_of
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, Texts
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class ZeroEntropyRequest(ForeignRequest):
    """A query and documents. Fields not named here are ignored, such as `latency`, since there is only one mode."""

    documents: Texts
    top_n: AnyLimit = None


@dataclass(slots=True)
class ZeroEntropyResult:
    """A ranked document. index: its index in the request."""

    index: int
    relevance_score: float


class ZeroEntropyResponse(BaseModel):
    """Documents from most to least relevant.

    e2e_latency: seconds that the request took. inference_latency: seconds of encoding and scoring. total_bytes: size of
    the query and the documents in UTF-8. total_tokens: token ids read in all stages, cached or not.
    """

    results: list[ZeroEntropyResult]
    actual_latency_mode: Literal["fast"] = "fast"
    e2e_latency: float
    inference_latency: float
    total_bytes: int
    total_tokens: int


def read(request: ZeroEntropyRequest) -> Call:
    """The call of a request."""
    return call_of(request, request.documents, top_n=request.top_n)


def write(exchange: Exchange[ZeroEntropyRequest]) -> bytes:
    """The JSON of the ZeroEntropyResponse."""
    ms = timings_of(exchange)
    response = ZeroEntropyResponse(
        results=[ZeroEntropyResult(index, score) for index, score, _ in exchange.ranked],
        e2e_latency=ms.total / 1000,
        inference_latency=(ms.encode + ms.score) / 1000,
        total_bytes=sum(len(text.encode()) for text in (exchange.request.query, *exchange.request.documents)),
        total_tokens=exchange.answer.ranking.num_tokens,
    )
    return json_of(response)


ZEROENTROPY = Dialect(ZeroEntropyRequest, ZeroEntropyResponse, read, write)
