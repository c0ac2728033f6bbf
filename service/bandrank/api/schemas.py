"""The wire format of POST /rerank, bandrank's own; other dialects translate to and from it.

What comes a thousand times in an answer is a dataclass: pydantic reads and writes it as it does a model, and making one
costs a fifth.
"""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bandrank.engine.cascade import Strategy
from bandrank.engine.stage import StageName


@dataclass(slots=True)
class CandidateIn:
    """A candidate with an id of the client's, given back in the results. Without a text: one registered before."""

    id: str
    text: str | None = None


# left_to_right: no value is both, and a text is not measured against the object.
TextOrCandidate = Annotated[str | CandidateIn, Field(union_mode="left_to_right")]


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

    query: str
    candidates: list[TextOrCandidate] | None = Field(default=None, description="Texts, or objects with id and text.")
    documents: list[TextOrCandidate] | None = Field(default=None, description="Another name for candidates.")
    top_n: Annotated[int, Field(ge=0)] | None = Field(default=None, description="null, 0 or more than there are: all.")
    return_documents: bool | None = False
    raw_scores: bool | None = Field(default=False, description="The scorer's own scores instead of their sigmoid.")
    model: str | None = None
    strategy: Strategy | None = Field(
        default="auto",
        description="fast: the scorer that precomputes. accurate: the other. cascade: fast over all, accurate over the "
        "best of them. auto: what fits.",
    )
    budget_ms: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Within which an answer is wanted; the header X-Budget-Ms says the same."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.query.strip():
            raise ValueError("query must not be empty")
        if (self.candidates is None) == (self.documents is None):
            raise ValueError("give the texts to rank in candidates (or documents), and not in both")
        if not self.items:
            raise ValueError("candidates must not be empty")
        return self

    @property
    def items(self) -> list[str | CandidateIn]:
        """The candidates, under whichever name they came."""
        return self.candidates if self.candidates is not None else self.documents or []


@dataclass(slots=True)
class DocumentOut:
    """A candidate's text, when asked for."""

    text: str


@dataclass(slots=True)
class Result:
    """A candidate by its place in the request. `id` only if one was sent, `document` only if asked for.

    stage: that scored it. In a cascade, scores of candidates that only the fast stage saw are shifted below the others.
    """

    index: int
    relevance_score: float
    stage: StageName
    id: str | None = None
    document: DocumentOut | None = None


class Usage(BaseModel):
    """Token ids of what was scored, cached or not: in each stage the query once, and every candidate."""

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
    """What a stage did: candidates it scored, representations found or missed in the cache, milliseconds."""

    stage: StageName
    candidates: int
    cache_hits: int
    cache_misses: int
    ms: float


@dataclass(slots=True)
class Unresolved:
    """A candidate that was not ranked: it came without a text, and its id is not registered."""

    index: int
    id: str
    error: str


class Meta(BaseModel):
    """What the answer cost, and what was cut: word pieces of texts longer than the model takes, in the stage that cut
    most.

    degraded: budget or load left fewer candidates to the accurate stage than the cascade would have sent there.
    """

    timings_ms: TimingsMs
    strategy: Strategy
    stages: list[StageMeta]
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
    """One flat body for every error, in the words that the known clients read."""

    message: str
    detail: str
    error: str
    error_type: str


class RegisteredCandidate(BaseModel):
    """A candidate to be ranked by its id later."""

    id: Annotated[str, Field(min_length=1, max_length=512)]
    text: str


class RegisterRequest(BaseModel):
    """Candidates to register; an id that is registered already gets the new text."""

    candidates: list[RegisteredCandidate]


class DeleteRequest(BaseModel):
    """Ids to forget; ids that are not registered are no error."""

    ids: list[str]


class LineError(BaseModel):
    """A line of an NDJSON upload that was not registered, counted from 1."""

    line: int
    error: str


class RegisterResponse(BaseModel):
    """What was registered, and how many of the texts were encoded for it; the others were in the cache.

    errors: the first lines that could not be read, of num_errors.
    """

    registered: int
    encoded: int
    num_errors: int = 0
    errors: list[LineError] = []


class DeleteResponse(BaseModel):
    """How many ids were registered until now."""

    deleted: int
