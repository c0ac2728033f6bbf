"""Cohere's dialect, v1 and v2, in the form that clients of Jina, vLLM, Xinference and llama.cpp read as well.

All of these send `query` and `documents` and read `results` with `index` and `relevance_score`. A result has a
`document` only if it was asked for, and then as an object: some clients fail on null, some on a text, and some on
further keys.
"""

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from bandrank.api.dialects.costs import Meta, Usage, meta_of
from bandrank.api.dialects.dialect import Dialect, Exchange, sigmoid
from bandrank.api.dialects.documents import (
    DocumentsOrOne,
    Metadata,
    RankFields,
    documents_schema,
    texts_of,
    with_metadata,
    with_text,
)
from bandrank.api.dialects.fields import AnyLimit, Flag, Limit
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.api.dialects.parts import IN_PARTS, TextOfQuery
from bandrank.api.dialects.vllm import VllmRequest, warnings_of
from bandrank.api.error_bodies import OpenAIErrorBody
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.policy import AUTO

SPAN_THRESHOLD = 0.1  # Cohere's own default
UNIT_DOCUMENTS = 100


class SpansWanted(BaseModel):
    """Asks for the most relevant span of each document. Fields not named here are ignored, such as `max_spans`, since a
    result has at most one span.

    threshold: the least score of a span, between 0 and 1; null: 0.1.
    """

    mode: Literal["enabled", "disabled"] | None = None
    threshold: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None


class CohereRequest(VllmRequest, ForeignRequest):
    """A query and documents, as clients of Cohere, Jina, vLLM, Xinference, llama.cpp and Contextual AI send them.

    Fields not named here are ignored.
    """

    model_config = ConfigDict(json_schema_extra=documents_schema("documents", IN_PARTS))

    query: TextOfQuery = Field(description="The query, not blank: a text, or an object with `text` or parts.")
    documents: DocumentsOrOne = Field(
        description="Texts, or objects with `text`, the `rank_fields` or parts. A single text or one in parts will do."
    )
    top_n: AnyLimit = None
    rank_fields: RankFields | None = None
    metadata: Metadata = None
    return_documents: Flag = Field(default=False, description="Whether results have their documents.")
    raw_scores: Flag = Field(default=False, description="Whether scores are the scorer's own and not their sigmoid.")
    max_chunks_per_doc: Limit = Field(
        default=None, description="How many passages of a long document are scored. null or 0: all."
    )
    relevant_spans: SpansWanted | None = Field(
        default=None, description="Gives each result the best passage of its document, unless mode is disabled."
    )
    strategy: str | None = Field(default=None, description="As in bandrank's own request.")
    budget_ms: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        default=None, description="As in bandrank's own request."
    )

    @property
    def raw(self) -> bool:
        """Whether the scorer's raw scores are wanted."""
        return bool(self.raw_scores) or super().raw

    @property
    def spans(self) -> bool:
        """Whether results should have spans."""
        return self.relevant_spans is not None and self.relevant_spans.mode != "disabled"


@dataclass(slots=True)
class Span:
    """The characters of a document's text from `start` up to `end`, in Unicode code points, and their own score."""

    start: int
    end: int
    score: float


@dataclass(slots=True)
class CohereResult:
    """A ranked document. index: its index in the request.

    document: present if asked for; if it came without a `text`, with the one that was ranked. relevant_spans: present
    if asked for and if the stage reads passages: the best one, or none if its score is below the threshold.
    """

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None
    relevant_spans: list[Span] | None = None


class ApiVersion(BaseModel):
    """The version of Cohere's API that the path names."""

    version: str


class Tokens(BaseModel):
    """Token ids read in all stages, cached or not. output_tokens: always 0; some clients add it to input_tokens."""

    input_tokens: int
    output_tokens: int = 0


class CohereUsage(Usage):
    """Usage, with completion_tokens: always 0, but some of Together's clients refuse an answer without it."""

    completion_tokens: int = 0


class BilledUnits(BaseModel):
    """What Cohere would bill, which some clients read. search_units: one for each 100 documents, or part of them."""

    search_units: int


class CohereMeta(Meta):
    """The fields of `Meta`, and those that Cohere's clients read."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: Tokens


class CohereResponse(BaseModel):
    """Documents from most to least relevant; ties keep the order of the request. model: the one that ranked."""

    id: str
    model: str
    results: list[CohereResult]
    usage: CohereUsage
    meta: CohereMeta


def read(request: CohereRequest) -> Call:
    """The call of a request, without its candidates."""
    call = call_of(
        request,
        top_n=request.top_n,
        return_texts=request.return_documents,
        raw_scores=request.raw,
    )
    budget_s = None if request.budget_ms is None else request.budget_ms / 1000
    return replace(
        call,
        strategy=request.strategy or AUTO,
        budget_s=budget_s,
        options=replace(request.options(max_passages=request.max_chunks_per_doc), best_passages=request.spans),
    )


def texts(request: CohereRequest) -> Iterator[str]:
    """The texts of the documents. Raises InvalidInput for an object without one, and for a wrong number of metadata."""
    found = texts_of(request.documents, name="documents", rank_fields=request.rank_fields, in_parts=True)
    return found if request.metadata is None else with_metadata(found, request.metadata, len(request.documents))


def spans(exchange: Exchange[CohereRequest], index: int) -> list[Span] | None:
    """The relevant spans of a document, if they are asked for and its scorer reads passages.

    The threshold applies to the score between 0 and 1, even if raw scores are asked for.
    """
    wanted, passage = exchange.request.relevant_spans, exchange.answer.passages.get(index)
    if wanted is None or passage is None:
        return None
    threshold = SPAN_THRESHOLD if wanted.threshold is None else wanted.threshold
    [relevance] = sigmoid(np.array([passage.score], np.float32)).tolist()
    shown = passage.score if exchange.call.raw_scores else relevance
    return [Span(passage.start, passage.end, shown)] if relevance >= threshold else []


def write(exchange: Exchange[CohereRequest], *, version: str) -> bytes:
    """The JSON of the CohereResponse."""
    ranking, meta = exchange.answer.ranking, meta_of(exchange)
    results = [
        CohereResult(index, score, with_text(exchange, index), spans(exchange, index))
        for index, score, _ in exchange.ranked
    ]
    meta.warnings = warnings_of(exchange) or None
    response = CohereResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=exchange.answer.model,
        results=results,
        usage=CohereUsage.of(ranking.num_tokens),
        meta=CohereMeta(
            **vars(meta),
            api_version=ApiVersion(version=version),
            billed_units=BilledUnits(search_units=math.ceil(len(exchange.call.candidates) / UNIT_DOCUMENTS)),
            tokens=Tokens(input_tokens=ranking.num_tokens),
        ),
    )
    return json_of(response)


def _cohere(version: str) -> Dialect[CohereRequest]:
    return Dialect(
        CohereRequest,
        CohereResponse,
        read,
        partial(write, version=version),
        texts,
        fields=("documents",),
        document=with_text,
    )


COHERE_V1, COHERE_V2 = _cohere("1"), _cohere("2")
TOGETHER = replace(COHERE_V1, error=OpenAIErrorBody)
