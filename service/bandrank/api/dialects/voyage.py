"""Voyage's dialect: like Cohere's, but for `top_k`, and `data` where Cohere has `results`.

A request without `top_k` and `truncation`, such as litellm sends for all documents, is known by its path alone: the
base URL of that client ends with /voyage. So is Fireworks' dialect, which is the same with `top_n` for `top_k`.
"""

from pydantic import BaseModel

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, Flag, Texts
from bandrank.api.dialects.foreign import ForeignRequest, RankedText, call_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class VoyageRequest(ForeignRequest):
    """A query and documents. No document is too long, so `truncation` has no effect. `top_n` counts without `top_k`."""

    documents: Texts
    top_k: AnyLimit = None
    top_n: AnyLimit = None
    truncation: Flag = True
    return_documents: Flag = False


class VoyageResponse(BaseModel):
    """Documents from most to least relevant. model: the one that ranked."""

    object: str = "list"
    data: list[RankedText]
    model: str
    usage: Usage


def read(request: VoyageRequest) -> Call:
    """The call of a request."""
    top_n = request.top_k or request.top_n
    return call_of(request, request.documents, top_n=top_n, return_texts=request.return_documents)


def write(exchange: Exchange[VoyageRequest]) -> bytes:
    """The JSON of the VoyageResponse."""
    response = VoyageResponse(
        data=[RankedText(*each) for each in exchange.ranked],
        model=exchange.answer.model,
        usage=Usage.of(exchange.answer.ranking.num_tokens),
    )
    return json_of(response)


VOYAGE = Dialect(VoyageRequest, VoyageResponse, read, write, fields=("top_k", "truncation"))
