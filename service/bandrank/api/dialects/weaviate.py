"""The dialect of the container that Weaviate's reranker-transformers module calls: scores in the order of the request.

The module finds a document by the position of its score, sends 32 documents at a time, and no Content-Type.
"""

from dataclasses import dataclass, replace

from pydantic import BaseModel, Field

from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import Texts
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class WeaviateRequest(ForeignRequest):
    """A query and documents. property: the field that the documents come from; may be empty."""

    documents: Texts
    field: str = Field(alias="property")


@dataclass(slots=True)
class WeaviateScore:
    """A document with its score."""

    document: str
    score: float


class WeaviateResponse(BaseModel):
    """A score for each document, in the order of the request."""

    query: str
    scores: list[WeaviateScore]
    field: str = Field(alias="property")


def read(request: WeaviateRequest) -> Call:
    """The call of a request. Its strategy is that of pairs: the module sorts the documents of all its requests for a
    search by their scores, and in a cascade a score depends on the other documents of the request.
    """
    return replace(call_of(request, request.documents, return_texts=True), strategy=None)


def write(exchange: Exchange[WeaviateRequest]) -> bytes:
    """The JSON of the WeaviateResponse."""
    request = exchange.request
    scores = zip(request.documents, exchange.scores_as_sent, strict=True)
    response = WeaviateResponse(
        query=request.query, scores=[WeaviateScore(*each) for each in scores], property=request.field
    )
    return json_of(response)


WEAVIATE = Dialect(WeaviateRequest, WeaviateResponse, read, write, fields=("property",))
