"""The native dialect: POST /rerank.

Parts that an answer holds a thousand times are dataclasses: pydantic reads and writes them like models, and making one
takes a fifth of the time.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema, model_validator

from bandrank.api.dialects.costs import Meta, Usage, meta_of
from bandrank.api.dialects.dialect import Dialect, Exchange, shown_scores
from bandrank.api.dialects.fields import NOT_BLANK, Count, Instruction, Limit, not_blank
from bandrank.api.responses import json_of
from bandrank.engine.calls import Call
from bandrank.engine.options import Options
from bandrank.engine.policy import AUTO
from bandrank.engine.registry import CallCandidate, Unresolved
from bandrank.models.texts import Reach

Score = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@dataclass(slots=True)
class CandidateIn:
    """A candidate: a text, a registered id, or both.

    id: results repeat it. Without a text, it must be registered. score: the score of the search that found the
    candidate, on any scale.
    """

    __pydantic_config__ = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in ("text", "id")]
        }
    )

    id: str | None = None
    text: str | None = None
    score: Score | None = None


# left_to_right: no value fits both, and a text need not be tried as an object.
TextOrCandidate = Annotated[str | CandidateIn, Field(union_mode="left_to_right")]
Candidates = Annotated[
    list[TextOrCandidate],
    Field(fail_fast=True, json_schema_extra={"minItems": 1}),  # a million faults would take gigabytes
]


def is_nothing(candidate: str | CandidateIn) -> bool:
    """Whether a candidate has neither a text nor an id."""
    return not isinstance(candidate, str) and candidate.text is None and candidate.id is None


class RerankRequest(BaseModel):
    """A query and the candidates to be put in order of relevance to it. Fields not named here are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "query": "how do bees find their way home?",
                    "candidates": ["Bees navigate by the sun.", {"id": "doc-7", "text": "Honey is made from nectar."}],
                    "top_n": 1,
                    "return_documents": True,
                }
            ]
        }
    )

    query: str = Field(description="The text of the query, not blank.", json_schema_extra={"pattern": NOT_BLANK})
    candidates: Candidates = Field(description="Texts, or objects with a text, an id, or both.")
    documents: Annotated[object, WithJsonSchema({"type": "null"})] = Field(
        default=None, description="Other services' requests have these in place of candidates."
    )
    top_n: Count | None = Field(
        default=None, description="How many results to return. null, 0, or more than there are: all."
    )
    return_documents: StrictBool | None = Field(default=False, description="Whether results repeat their texts.")
    raw_scores: StrictBool | None = Field(
        default=False, description="Whether scores are the scorer's own and not their sigmoid."
    )
    model: str | None = Field(
        default=None, description="A model of GET /v1/models, or an alias or scorer of one. null or empty: the first."
    )
    strategy: str | None = Field(
        default=AUTO,
        description="The name of a stage, cascade, or auto. fast: the scorer that precomputes. accurate: the other. "
        "cascade: fast for all candidates, then accurate for the best of them. auto, null or empty: accurate if the "
        "candidates are few and the budget allows it, otherwise cascade.",
    )
    budget_ms: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        default=None, description="Milliseconds until the answer is due. null: the header X-Budget-Ms counts."
    )

    instruction: Instruction = None
    first_stage_weight: Annotated[float, Field(ge=0, le=1, strict=True)] | None = Field(
        default=None, description="From 0 to 1: how much candidates' own scores count. null: as set for the model."
    )
    pooled: StrictBool | None = Field(
        default=None,
        description="Whether shared words also count by how rare they are among the candidates. null: as set for the "
        "model.",
    )

    max_tokens_per_candidate: Limit = Field(
        default=None, description="How many tokens of a candidate are read, by the model's tokenizer. null or 0: all."
    )

    return_passages: StrictBool | None = Field(
        default=False, description="Whether each result says which passage of its text scored best."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        not_blank(self.query)
        if self.documents is not None:
            raise ValueError("give the texts to rank in candidates (or documents), and not in both")
        if not self.candidates:
            raise ValueError("candidates must not be empty")
        for index, candidate in enumerate(self.candidates):
            if is_nothing(candidate):
                raise ValueError(f"candidates.{index} has neither a text nor an id")
        return self


@dataclass(slots=True)
class DocumentOut:
    """A candidate's text."""

    text: str


@dataclass(slots=True)
class PassageOut:
    """A passage of a candidate's text: the characters from `start` up to `end`, in Unicode code points.

    A text that fits the model is one passage. score: the stage's own score for it, with no other score added.
    """

    start: int
    end: int
    score: float


@dataclass(slots=True)
class Result:
    """A ranked candidate.

    index: its index in the request. stage: the last stage that scored it. In a cascade, candidates that a later stage
    did not see rank below those it saw, and their scores are shifted to lie below. id: present if one was sent.
    document: present if asked for. passage: the one that scored best; present if asked for and if the stage reads
    passages.
    """

    index: int
    relevance_score: float
    stage: str
    id: str | None = None
    document: DocumentOut | None = None
    passage: PassageOut | None = None


class RerankResponse(BaseModel):
    """Candidates from most to least relevant; ties keep the order of the request.

    model: the name of the model that ranked. unresolved: candidates that were not ranked; absent if there are none.
    """

    id: str
    model: str
    results: list[Result]
    unresolved: list[Unresolved] | None = None
    usage: Usage
    meta: Meta


def read(request: RerankRequest) -> Call:
    """The call of a request."""
    return Call(
        query=request.query,
        candidates=[
            CallCandidate(item) if isinstance(item, str) else CallCandidate(item.text, item.id, score=item.score)
            for item in request.candidates
        ],
        top_n=request.top_n,
        model=request.model,
        strategy=request.strategy or AUTO,
        budget_s=None if request.budget_ms is None else request.budget_ms / 1000,
        return_texts=bool(request.return_documents),
        raw_scores=bool(request.raw_scores),
        first_stage_weight=request.first_stage_weight,
        pooled=request.pooled,
        options=Options(
            Reach(request.max_tokens_per_candidate),
            request.instruction or "",
            best_passages=bool(request.return_passages),
        ),
    )


def passage_of(exchange: Exchange[RerankRequest], index: int) -> PassageOut | None:
    """The best passage of a result; None if it has none."""
    best = exchange.answer.passages.get(index)
    return None if best is None else PassageOut(best.start, best.end, *shown_scores(exchange.call, [best]))


def write(exchange: Exchange[RerankRequest]) -> bytes:
    """The JSON of the RerankResponse."""
    call, answer = exchange.call, exchange.answer
    results = []
    for candidate, score in zip(exchange.results, exchange.scores, strict=True):
        index = candidate.index
        text = exchange.text(index)
        document = None if text is None else DocumentOut(text)
        passage = passage_of(exchange, index)
        results.append(Result(index, score, candidate.stage, call.candidates[index].id, document, passage))
    response = RerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=answer.model,
        results=results,
        unresolved=list(answer.unresolved) or None,
        usage=Usage.of(answer.ranking.num_tokens),
        meta=meta_of(exchange),
    )
    return json_of(response)


NATIVE = Dialect(RerankRequest, RerankResponse, read, write, fields=("candidates",))
