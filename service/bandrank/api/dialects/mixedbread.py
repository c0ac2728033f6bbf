"""Mixedbread's dialect: `input` in place of documents, and `data` with `score` for an answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.documents import Documents, RankFields, documents_schema, texts_of
from bandrank.api.dialects.fields import AnyLimit, Flag
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call


class MixedbreadRequest(ForeignRequest):
    """A query and documents. Fields not named here are ignored, such as `rewrite_query`."""

    model_config = ConfigDict(json_schema_extra=documents_schema("input"))

    input: Documents = Field(description="Texts, or objects with a `text` or the `rank_fields`.")
    rank_fields: RankFields | None = None
    top_k: AnyLimit = None
    return_input: Flag = False


@dataclass(slots=True)
class MixedbreadResult:
    """A ranked document. index: its index in the request. input: as it was sent; present if asked for."""

    index: int
    score: float
    input: str | dict[str, Any] | None = None
    object: str = "rank_result"


class MixedbreadResponse(BaseModel):
    """Documents from most to least relevant. model: the one that ranked. top_k: how many results there are."""

    usage: Usage
    model: str
    data: list[MixedbreadResult]
    object: str = "list"
    top_k: int
    return_input: bool


def read(request: MixedbreadRequest) -> Call:
    """The call of a request, without its candidates."""
    return call_of(request, top_n=request.top_k, return_texts=request.return_input)


def texts(request: MixedbreadRequest) -> Iterator[str]:
    """The texts of the documents. Raises InvalidInput for an object without a text."""
    return texts_of(request.input, name="input", rank_fields=request.rank_fields)


def document(exchange: Exchange[MixedbreadRequest], index: int) -> str | dict[str, Any] | None:
    """A document as it was sent, if asked for."""
    return exchange.request.input[index] if exchange.call.return_texts else None


def write(exchange: Exchange[MixedbreadRequest]) -> bytes:
    """The JSON of the MixedbreadResponse."""
    results = [MixedbreadResult(index, score, document(exchange, index)) for index, score, _ in exchange.ranked]
    response = MixedbreadResponse(
        usage=Usage.of(exchange.answer.ranking.num_tokens),
        model=exchange.answer.model,
        data=results,
        top_k=len(results),
        return_input=exchange.call.return_texts,
    )
    return json_of(response)


MIXEDBREAD = Dialect(MixedbreadRequest, MixedbreadResponse, read, write, texts, fields=("input",), document=document)
