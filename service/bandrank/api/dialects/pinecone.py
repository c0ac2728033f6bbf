"""Pinecone's dialect: documents are objects, and come back in `data` with a `score`, unless they are not wanted.

Its client posts the same to /rerank as Cohere's clients do, so it has a path of its own: its host ends with /pinecone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.documents import Documents, RankFields, as_sent, documents_schema, texts_of
from bandrank.api.dialects.fields import AnyLimit, Flag
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class PineconeRequest(ForeignRequest):
    """A query and documents. Fields not named here are ignored, such as `parameters`."""

    model_config = ConfigDict(json_schema_extra=documents_schema("documents"))

    documents: Documents = Field(description="Texts, or objects with a `text` or the `rank_fields`.")
    rank_fields: RankFields | None = None
    top_n: AnyLimit = None
    return_documents: Flag = True


@dataclass(slots=True)
class PineconeResult:
    """A ranked document. index: its index in the request. document: as it was sent; absent if not wanted."""

    index: int
    score: float
    document: dict[str, Any] | None = None


class PineconeUsage(BaseModel):
    """What Pinecone would bill: one unit for each request."""

    rerank_units: Literal[1] = 1


class PineconeResponse(BaseModel):
    """Documents from most to least relevant. model: the one that ranked."""

    model: str
    data: list[PineconeResult]
    usage: PineconeUsage


def read(request: PineconeRequest) -> Call:
    """The call of a request, without its candidates."""
    return call_of(request, top_n=request.top_n, return_texts=request.return_documents is not False)


def texts(request: PineconeRequest) -> Iterator[str]:
    """The texts of the documents. Raises InvalidInput for an object without a text."""
    return texts_of(request.documents, name="documents", rank_fields=request.rank_fields)


def write(exchange: Exchange[PineconeRequest]) -> bytes:
    """The JSON of the PineconeResponse."""
    response = PineconeResponse(
        model=exchange.answer.model,
        data=[PineconeResult(index, score, as_sent(exchange, index)) for index, score, _ in exchange.ranked],
        usage=PineconeUsage(),
    )
    return json_of(response)


PINECONE = Dialect(PineconeRequest, PineconeResponse, read, write, texts, document=as_sent)
