"""What the requests of other services have in common."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, Field

from bandrank.api.dialects.fields import Query
from bandrank.engine.calls import Call
from bandrank.engine.registry import CallCandidate


class NamesModel(BaseModel):
    """A request that may name a model. Fields not named here are ignored."""

    model: str | None = Field(
        default=None,
        description="A model that GET /v1/models lists. null or any other name: the first, unless the service refuses "
        "unknown names.",
    )


class ForeignRequest(NamesModel):
    """A query, with what is to be ranked for it."""

    query: Query = Field(description="The text of the query, not blank.")


@dataclass(slots=True)
class RankedText:
    """A ranked document. index: its index in the request. document: its text; present if asked for."""

    index: int
    relevance_score: float
    document: str | None = None


def call_of(
    request: ForeignRequest,
    texts: Iterable[str] = (),
    *,
    top_n: int | None = None,
    return_texts: bool | None = False,
    raw_scores: bool | None = False,
) -> Call:
    """The call to rank texts for the query of a request. Raises what iterating over them raises."""
    return Call(
        query=request.query,
        candidates=[CallCandidate(text) for text in texts],
        top_n=top_n,
        model=request.model,
        any_model=True,
        return_texts=bool(return_texts),
        raw_scores=bool(raw_scores),
    )
