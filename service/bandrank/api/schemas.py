"""The wire format of POST /rerank, bandrank's own; other dialects translate to and from it."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class CandidateIn(BaseModel):
    """A candidate with an id of the client's, given back in the results."""

    id: str
    text: str


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
    candidates: list[str | CandidateIn] | None = Field(default=None, description="Texts, or objects with id and text.")
    documents: list[str | CandidateIn] | None = Field(default=None, description="Another name for candidates.")
    top_n: Annotated[int, Field(ge=0)] | None = Field(default=None, description="null, 0 or more than there are: all.")
    return_documents: bool | None = False
    raw_scores: bool | None = Field(default=False, description="The scorer's own scores instead of their sigmoid.")
    model: str | None = None

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

    @property
    def texts(self) -> list[str]:
        """The candidates' texts, in the order of the request."""
        return [item if isinstance(item, str) else item.text for item in self.items]


class DocumentOut(BaseModel):
    """A candidate's text, when asked for."""

    text: str


class Result(BaseModel):
    """A candidate by its place in the request. `id` only if one was sent, `document` only if asked for."""

    index: int
    id: str | None = None
    relevance_score: float
    document: DocumentOut | None = None


class Usage(BaseModel):
    """Token ids that were scored: the query once, and every candidate."""

    prompt_tokens: int
    total_tokens: int


class TimingsMs(BaseModel):
    """Milliseconds of each step."""

    tokenize: float
    queue: float
    score: float
    total: float


class Meta(BaseModel):
    """What the answer cost, and what was cut: word pieces of texts longer than the model takes."""

    timings_ms: TimingsMs
    truncated_query_tokens: int
    truncated_tokens: int
    truncated_candidates: int
    score: str = Field(description="sigmoid: relevance_score is between 0 and 1; raw: the scorer's own scale.")


class RerankResponse(BaseModel):
    """Candidates from most to least relevant; ties in the order of the request."""

    id: str
    model: str
    results: list[Result]
    usage: Usage
    meta: Meta


class ErrorBody(BaseModel):
    """One flat body for every error, in the words that the known clients read."""

    message: str
    detail: str
    error: str
    error_type: str
