"""The dialect of text-embeddings-inference, which Elasticsearch's `hugging_face` service and Milvus speak too.

Its answer is a bare list with every text of the request: `top_n` is not part of it, and clients that send it cut the
list themselves. No text is too long, whatever `truncate` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from bandrank.api.dialects.costs import timings_of
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.fields import Flag, Texts
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.engine.calls import Call


class TeiRequest(ForeignRequest):
    """A query and texts. Fields not named here are ignored, such as `truncate` and `top_n`.

    raw_scores: whether scores are the scorer's own and not their sigmoid. return_text: whether results have texts.
    """

    texts: Texts
    raw_scores: Flag = False
    return_text: Flag = False


@dataclass(slots=True)
class TeiResult:
    """A ranked text. index: its index in the request. text: present if asked for."""

    index: int
    score: float
    text: str | None = None


RESULTS = TypeAdapter(list[TeiResult])


def read(request: TeiRequest) -> Call:
    """The call of a request."""
    return call_of(request, request.texts, return_texts=request.return_text, raw_scores=request.raw_scores)


def write(exchange: Exchange[TeiRequest]) -> bytes:
    """The JSON of the results, best first."""
    return RESULTS.dump_json([TeiResult(*each) for each in exchange.ranked], exclude_none=True)


def headers(exchange: Exchange[TeiRequest]) -> Mapping[str, str]:
    """Whole milliseconds of each step, and what was computed."""
    ms = timings_of(exchange)
    counts = {
        "x-compute-characters": len(exchange.request.query) + sum(map(len, exchange.request.texts)),
        "x-compute-tokens": exchange.answer.ranking.num_tokens,
        "x-compute-time": ms.total,
        "x-total-time": ms.total,
        "x-tokenization-time": ms.tokenize,
        "x-queue-time": ms.queue,
        "x-inference-time": ms.encode + ms.score,
    }
    return {name: str(round(count)) for name, count in counts.items()}


TEI = Dialect(TeiRequest, list[TeiResult], read, write, fields=("texts",), headers=headers)
