"""What the requests of other services have in common."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pydantic import BaseModel, Field

from bandrank.api.dialects.fields import Query
from bandrank.engine.calls import Call
from bandrank.engine.registry import CallCandidate

Item = TypeVar("Item")


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


def as_they_are(items: Sequence[object]) -> Iterable[str]:
    """The texts of items that are texts."""
    return map(str, items)


def call_of(
    request: ForeignRequest,
    items: Sequence[Item],
    *,
    texts_of: Callable[[Sequence[Item]], Iterable[str]] = as_they_are,
    top_n: int | None = None,
    return_texts: bool | None = False,
    raw_scores: bool | None = False,
) -> Call:
    """The call to rank items for the query of a request. texts_of: gives the texts of the items.

    Raises what `texts_of` raises.
    """
    return Call(
        query=request.query,
        candidates=[CallCandidate(text) for text in texts_of(items)],
        top_n=top_n,
        model=request.model,
        any_model=True,
        return_texts=bool(return_texts),
        raw_scores=bool(raw_scores),
    )
