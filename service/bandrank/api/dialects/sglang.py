"""SGLang's dialect: Cohere's request, and a bare list for an answer.

Nothing in a body tells it from Cohere's, so it has a path of its own: the base URL of its clients ends with /sglang.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, WithJsonSchema

from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import NOT_BLANK, AnyLimit, Flag, Instruction, NonEmpty, not_blank
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.dialects.parts import PARTS, SAYS_SOMETHING, joined
from bandrank.engine.calls import Call
from bandrank.engine.options import Options


def _joined(value: Any) -> Any:
    return joined({"content": value}) if isinstance(value, list) else value


TextOrParts = Annotated[str, BeforeValidator(_joined), WithJsonSchema({"anyOf": [{"type": "string"}, PARTS]})]
QueryOrParts = Annotated[
    str,
    BeforeValidator(_joined),
    AfterValidator(not_blank),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": NOT_BLANK}, PARTS | SAYS_SOMETHING]}),
]


class SglangRequest(ForeignRequest):
    """A query and documents, each a text or its parts. Results repeat documents unless `return_documents` is false."""

    query: QueryOrParts
    documents: NonEmpty[TextOrParts]
    top_n: AnyLimit = None
    return_documents: Flag = True
    instruct: Instruction = None


@dataclass(slots=True)
class SglangResult:
    """A ranked document. index: its index in the request. document: its text; absent if not wanted."""

    index: int
    score: float
    document: str | None = None


RESULTS = TypeAdapter(list[SglangResult])


def read(request: SglangRequest) -> Call:
    """The call of a request."""
    call = call_of(
        request,
        request.documents,
        top_n=request.top_n,
        return_texts=request.return_documents is not False,
    )
    return replace(call, options=Options(instruction=request.instruct or ""))


def write(exchange: Exchange[SglangRequest]) -> bytes:
    """The JSON of the results, best first."""
    return RESULTS.dump_json([SglangResult(*each) for each in exchange.ranked], exclude_none=True)


SGLANG = Dialect(SglangRequest, list[SglangResult], read, write)
