"""SGLang's dialect: Cohere's request, and a bare list for an answer.

Nothing in a body tells it from Cohere's, so it has a path of its own: the base URL of its clients ends with /sglang.
"""

from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import AnyLimit, Flag, Instruction, Texts
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.engine.calls import Call
from bandrank.engine.options import Options


class SglangRequest(ForeignRequest):
    """A query and documents, which the results repeat unless `return_documents` is false."""

    documents: Texts
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
