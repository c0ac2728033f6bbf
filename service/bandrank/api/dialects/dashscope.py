"""The dialect of DashScope, the API of Alibaba's Model Studio, as its SDKs for Python and Java speak it."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from bandrank.api.dialects.costs import Usage
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, Flag, Instruction, TextsOrObjects
from bandrank.api.dialects.foreign import NamesModel
from bandrank.api.dialects.parts import TextOfQuery
from bandrank.api.error_bodies import DashScopeErrorBody
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.options import Options
from bandrank.engine.registry import CallCandidate
from bandrank.logs import request_id


class DashScopeInput(BaseModel):
    """What is ranked: texts or, as requests to multimodal models have them, objects with a `text`."""

    query: TextOfQuery
    documents: TextsOrObjects


class DashScopeParameters(BaseModel):
    """How it is ranked. Fields not named here are ignored, such as `fps`."""

    top_n: AnyLimit = None
    return_documents: Flag = Field(default=False, description="Whether results have their documents.")
    instruct: Instruction = None


class DashScopeRequest(NamesModel):
    """A query and documents in `input`, with `parameters`, which may be absent."""

    input: DashScopeInput
    parameters: DashScopeParameters | None = None


@dataclass(slots=True)
class DashScopeResult:
    """A ranked document. index: its index in the request. document: an object with its text; present if asked for."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class DashScopeOutput(BaseModel):
    """Documents from most to least relevant."""

    results: list[DashScopeResult]


class DashScopeResponse(BaseModel):
    """A ranking. request_id: that of the header X-Request-Id."""

    output: DashScopeOutput
    usage: Usage
    request_id: str


def read(request: DashScopeRequest) -> Call:
    """The call of a request."""
    parameters = request.parameters or DashScopeParameters()
    return Call(
        query=request.input.query,
        candidates=[CallCandidate(text) for text in request.input.documents],
        top_n=parameters.top_n,
        model=request.model,
        any_model=True,
        return_texts=bool(parameters.return_documents),
        options=Options(instruction=parameters.instruct or ""),
    )


def document(exchange: Exchange[DashScopeRequest], index: int) -> dict[str, str] | None:
    """A document as an object with its text, if asked for."""
    text = exchange.text(index)
    return None if text is None else {"text": text}


def write(exchange: Exchange[DashScopeRequest]) -> bytes:
    """The JSON of the DashScopeResponse."""
    results = [DashScopeResult(index, score, document(exchange, index)) for index, score, _ in exchange.ranked]
    response = DashScopeResponse(
        output=DashScopeOutput(results=results),
        usage=Usage.of(exchange.answer.ranking.num_tokens),
        request_id=request_id.get(),
    )
    return json_of(response)


DASHSCOPE = Dialect(DashScopeRequest, DashScopeResponse, read, write, document=document, error=DashScopeErrorBody)
