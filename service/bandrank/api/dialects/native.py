"""The native dialect: POST /rerank.

Parts that an answer holds a thousand times are dataclasses: pydantic reads and writes them like models, and making one
takes a fifth of the time.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from bandrank.api.dialects.dialect import Dialect, Problem, check_count, results_of, shown_scores
from bandrank.api.parsing import Json, parse
from bandrank.engine.calls import Answer, Call
from bandrank.engine.policy import AUTO
from bandrank.engine.ranking import Ranking
from bandrank.engine.registry import CallCandidate, Unresolved


@dataclass(slots=True)
class CandidateIn:
    """A candidate with the client's id, which the results repeat; without a text, one that was registered before."""

    id: str
    text: str | None = None


# A character that str.strip() leaves; readers of a pattern disagree on what \S is.
NOT_BLANK = r"[^\t-\r\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
# left_to_right: no value is both, and a text need not be tried as an object.
TextOrCandidate = Annotated[str | CandidateIn, Field(union_mode="left_to_right")]
Candidates = Annotated[
    list[TextOrCandidate],
    Field(fail_fast=True, json_schema_extra={"minItems": 1}),  # a million faults would take gigabytes
]


def _as_number(value: object) -> object:
    """Takes 2.0 and 1e30 for integers, as JSON does, and neither "2" nor true."""
    if isinstance(value, str | bool):
        raise ValueError("Input should be a valid integer")  # noqa: TRY004 - which pydantic turns into a fault
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
            ],
            "oneOf": [
                {"required": [name], "properties": {name: {"type": "array"}, other: {"type": "null"}}}
                for name, other in (("candidates", "documents"), ("documents", "candidates"))
            ],
        }
    )

    query: str = Field(description="Anything but whitespace.", json_schema_extra={"pattern": NOT_BLANK})
    candidates: Candidates | None = Field(default=None, description="Texts, or objects with id and text.")
    documents: Candidates | None = Field(default=None, description="Another name for candidates.")
    top_n: Annotated[int, Field(ge=0), BeforeValidator(_as_number)] | None = Field(
        default=None, description="null, 0 or more than there are: all."
    )
    return_documents: StrictBool | None = False
    raw_scores: StrictBool | None = Field(
        default=False, description="The scorer's own scores instead of their sigmoid."
    )
    model: str | None = Field(default=None, description="One of GET /v1/models; null or empty: the first.")
    strategy: str | None = Field(
        default=AUTO,
        description="The name of a stage. fast: the scorer that precomputes. accurate: the other. cascade: fast over "
        "all, accurate over the best of them. auto, null or empty: what fits.",
    )
    budget_ms: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        default=None, description="Milliseconds until the answer is due; the header X-Budget-Ms says the same."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.query or self.query.isspace():
            raise ValueError("query must not be empty")
        if (self.candidates is None) == (self.documents is None):
            raise ValueError("give the texts to rank in candidates (or documents), and not in both")
        if not self.items:
            raise ValueError("candidates must not be empty")
        return self

    @property
    def items(self) -> list[str | CandidateIn]:
        """The candidates, under either of their names."""
        return self.candidates if self.candidates is not None else self.documents or []


@dataclass(slots=True)
class DocumentOut:
    """A candidate's text."""

    text: str


@dataclass(slots=True)
class Result:
    """A candidate by its index in the request. `id` only if one was sent, `document` only if asked for.

    stage: the last stage that scored it. In a cascade, candidates that only the first stage saw have their scores
    shifted below the others.
    """

    index: int
    relevance_score: float
    stage: str
    id: str | None = None
    document: DocumentOut | None = None


class Usage(BaseModel):
    """Token ids over all stages, cached or not: in each stage the query once, and every candidate that it scored."""

    prompt_tokens: int
    total_tokens: int


class TimingsMs(BaseModel):
    """Milliseconds of each step, over all stages."""

    tokenize: float
    cache: float
    encode: float
    queue: float
    score: float
    total: float


class StageMeta(BaseModel):
    """What a stage did: candidates scored, representations that were cached or not, and its milliseconds."""

    stage: str
    candidates: int
    cache_hits: int
    cache_misses: int
    ms: float


class Meta(BaseModel):
    """What the answer cost, and what was cut.

    bounded: whether budget and load could cut the strategy short; its first stage always scores every candidate.
    degraded: whether budget or load left fewer candidates to a stage than the strategy would have sent there.
    truncated_*: word pieces of texts longer than the model takes, in the stage that cut most.
    """

    timings_ms: TimingsMs
    strategy: str
    stages: list[StageMeta]
    bounded: bool
    degraded: bool
    truncated_query_tokens: int
    truncated_tokens: int
    truncated_candidates: int
    score: str = Field(description="sigmoid: relevance_score is between 0 and 1; raw: the scorer's own scale.")


class RerankResponse(BaseModel):
    """Candidates from most to least relevant; ties in the order of the request."""

    id: str
    model: str
    results: list[Result]
    unresolved: list[Unresolved] | None = None
    usage: Usage
    meta: Meta


class ErrorBody(BaseModel):
    """The flat body of every error, under each of the names that known clients read."""

    message: str
    detail: str
    error: str
    error_type: str


def read(body: Json, max_candidates: int) -> Call:
    """Turns the JSON of a RerankRequest into a call. Raises InvalidInput, and InputTooLarge for too many candidates."""
    request = parse(RerankRequest, body)
    check_count(len(request.items), max_candidates)
    return Call(
        query=request.query,
        candidates=[
            CallCandidate(item) if isinstance(item, str) else CallCandidate(item.text, item.id)
            for item in request.items
        ],
        top_n=request.top_n,
        model=request.model,
        strategy=request.strategy or AUTO,
        budget_s=None if request.budget_ms is None else request.budget_ms / 1000,
        return_texts=bool(request.return_documents),
        raw_scores=bool(request.raw_scores),
    )


def write(call: Call, answer: Answer, total_s: float) -> str:
    """The JSON of the RerankResponse to a call. total_s: seconds since the request's body began to arrive."""
    ranking = answer.ranking
    ranked = results_of(call, answer)
    results = []
    for candidate, score in zip(ranked, shown_scores(call, ranked), strict=True):
        text = answer.texts[candidate.index] if call.return_texts else None
        document = None if text is None else DocumentOut(text)
        results.append(Result(candidate.index, score, candidate.stage, call.candidates[candidate.index].id, document))
    response = RerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=answer.model,
        results=results,
        unresolved=list(answer.unresolved) or None,
        usage=Usage(prompt_tokens=ranking.num_tokens, total_tokens=ranking.num_tokens),
        meta=_meta(ranking, total_s, score="raw" if call.raw_scores else "sigmoid"),
    )
    return response.model_dump_json(exclude_none=True)


def write_error(problem: Problem) -> str:
    """The JSON of the ErrorBody for a problem."""
    text = problem.message
    return ErrorBody(message=text, detail=text, error=text, error_type=problem.error_type).model_dump_json()


def _meta(ranking: Ranking, total_s: float, *, score: str) -> Meta:
    reports = ranking.reports
    names = [name for name in TimingsMs.model_fields if name != "total"]
    steps = {name: _ms(sum(report.seconds(name) for report in reports)) for name in names}
    return Meta(
        timings_ms=TimingsMs(**steps, total=_ms(total_s)),
        strategy=ranking.strategy,
        stages=[
            StageMeta(
                stage=report.stage,
                candidates=report.num_candidates,
                cache_hits=report.cache_hits,
                cache_misses=report.cache_misses,
                ms=_ms(report.total_s),
            )
            for report in reports
        ],
        bounded=ranking.bounded,
        degraded=ranking.degraded,
        truncated_query_tokens=max(report.truncated_query_tokens for report in reports),
        truncated_tokens=max(report.truncated_tokens for report in reports),
        truncated_candidates=max(sum(cut > 0 for cut in report.truncated_candidate_tokens) for report in reports),
        score=score,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


NATIVE = Dialect(
    paths=("/rerank",),
    request=RerankRequest,
    response=RerankResponse,
    error=ErrorBody,
    read=read,
    write=write,
    write_error=write_error,
)
