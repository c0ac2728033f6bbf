"""Cohere's dialect, v1 and v2, in the form that clients of Jina, vLLM, Xinference and llama.cpp read as well.

All of these send `query` and `documents` and read `results` with `index` and `relevance_score`. A result has a
`document` only if it was asked for, and then as an object: some clients fail on null, some on a text, and some on
further keys.
"""

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from bandrank.api.dialects.costs import Meta, Usage, meta_of, usage_of
from bandrank.api.dialects.dialect import Dialect, Exchange
from bandrank.api.dialects.documents import Documents, RankFields, documents_schema, given_back, text_of
from bandrank.api.dialects.fields import Count, Flag, Limit
from bandrank.api.dialects.foreign import ForeignRequest, call_of
from bandrank.engine.calls import Call
from bandrank.engine.policy import AUTO
from bandrank.models.texts import Reach

NO_SPANS = "relevant_spans: results have none; the scorer does not say which part of a document it found relevant"
NO_CUT = "truncate_prompt_tokens was not applied, because a query is never cut; max_tokens_per_doc limits documents"


class CohereRequest(ForeignRequest):
    """A query and documents, as clients of Cohere, Jina, vLLM, Xinference and llama.cpp send them.

    Fields not named here are ignored, such as `priority`.
    """

    model_config = ConfigDict(json_schema_extra=documents_schema("documents"))

    documents: Documents = Field(description="Texts, or objects with `text` or with the `rank_fields`.")
    top_n: Count | None = Field(default=None, description="null, 0 or more than there are: all.")
    rank_fields: RankFields | None = Field(default=None, description="Of objects, the fields that are ranked.")
    return_documents: Flag = False
    raw_scores: Flag = Field(default=False, description="The scorer's own scores instead of their sigmoid.")
    use_activation: Flag = Field(default=True, description="false: the same as raw_scores.")
    activation: Flag = Field(default=True, description="Another name for use_activation.")
    max_tokens_per_doc: Limit = Field(
        default=None, description="The tokens of a document that are read, by the model's tokenizer; null or 0: all."
    )
    max_chunks_per_doc: Limit = Field(
        default=None, description="The passages of a long document that are scored; null or 0: all."
    )
    truncate_prompt_tokens: Any = Field(
        default=None, description="Not applied; unless it is null, 0 or -1, the answer warns of it."
    )
    relevant_spans: dict[str, Any] | None = Field(
        default=None, description="Results have no spans; where they are not disabled, the answer warns of it."
    )
    strategy: str | None = Field(default=None, description="As in our own request.")
    budget_ms: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        default=None, description="As in our own request."
    )

    @property
    def raw(self) -> bool:
        """Whether scores are wanted as the scorer gives them."""
        return bool(self.raw_scores) or self.use_activation is False or self.activation is False

    @property
    def warnings(self) -> list[str]:
        """What was asked for in vain."""
        spans = self.relevant_spans is not None and self.relevant_spans.get("mode") != "disabled"
        return [*([NO_SPANS] if spans else []), *([NO_CUT] if self.truncate_prompt_tokens not in (None, 0, -1) else [])]


@dataclass(slots=True)
class CohereResult:
    """A document by its index in the request. document: `text` is the one that was ranked; only if asked for."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class ApiVersion(BaseModel):
    """The version of Cohere's API that the path names."""

    version: str


class Tokens(BaseModel):
    """Token ids of all stages, cached or not."""

    input_tokens: int


class CohereMeta(Meta):
    """What Cohere's clients look for, and what our own answer says. warnings: what was asked for in vain."""

    api_version: ApiVersion
    tokens: Tokens
    warnings: list[str] | None = None


class CohereResponse(BaseModel):
    """Documents from most to least relevant; ties in the order of the request."""

    id: str
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: CohereMeta


def read(request: CohereRequest, max_candidates: int) -> Call:
    """The call of a request. Raises InputTooLarge, and InvalidInput for an object without a text."""
    call = call_of(
        request,
        request.documents,
        max_candidates,
        text_of=partial(text_of, rank_fields=request.rank_fields),
        top_n=request.top_n,
        return_texts=request.return_documents,
        raw_scores=request.raw,
    )
    budget_s = None if request.budget_ms is None else request.budget_ms / 1000
    reach = Reach(request.max_tokens_per_doc, request.max_chunks_per_doc)
    return replace(call, strategy=request.strategy or AUTO, budget_s=budget_s, reach=reach)


def document(exchange: Exchange[CohereRequest], index: int) -> dict[str, Any] | None:
    """A document as an object, if asked for."""
    text = exchange.text(index)
    return None if text is None else given_back(exchange.request.documents[index], text)


def write(exchange: Exchange[CohereRequest], *, version: str) -> str:
    """The JSON of the CohereResponse."""
    ranking = exchange.answer.ranking
    response = CohereResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=exchange.answer.model,
        results=[
            CohereResult(index, score, None if text is None else document(exchange, index))
            for index, score, text in exchange.ranked
        ],
        usage=usage_of(ranking),
        meta=CohereMeta(
            **vars(meta_of(exchange)),
            api_version=ApiVersion(version=version),
            tokens=Tokens(input_tokens=ranking.num_tokens),
            warnings=exchange.request.warnings or None,
        ),
    )
    return response.model_dump_json(exclude_none=True)


def _cohere(version: str) -> Dialect[CohereRequest]:
    return Dialect(
        CohereRequest,
        CohereResponse,
        read,
        partial(write, version=version),
        fields=("documents",),
        document=document,
    )


COHERE_V1, COHERE_V2 = _cohere("1"), _cohere("2")
