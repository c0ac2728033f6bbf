"""Candidates that come by id alone, and the texts that were registered for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from bandrank.api.schemas import CandidateIn, Unresolved
from bandrank.engine.candidates import CandidateStore
from bandrank.errors import InvalidInput, NotReady


@dataclass(frozen=True)
class Resolved:
    """The texts to rank, where in the request each of them stands, and the candidates that have no text."""

    texts: list[str]
    places: list[int]
    unresolved: list[Unresolved]


async def resolve(store: CandidateStore, items: Sequence[str | CandidateIn]) -> Resolved:
    """Texts of the request, its own or registered ones, in its order.

    Raises InvalidInput if no candidate has a text, NotReady if that is because they cannot be looked up.
    """
    texts = [item if isinstance(item, str) else item.text for item in items]
    ids = {place: item.id for place, item in enumerate(items) if not isinstance(item, str) and item.text is None}
    reason = "not registered, and sent without a text"
    if ids:
        try:
            found = await store.get_many(list(ids.values()))
        except NotReady as error:
            if len(ids) == len(items):
                raise
            found, reason = [None] * len(ids), str(error)
        for place, text in zip(ids, found, strict=True):
            texts[place] = text
    ranked = {place: text for place, text in enumerate(texts) if text is not None}
    if not ranked:
        raise InvalidInput("no candidate can be ranked: all came without a text, and none of their ids is registered")
    return Resolved(
        texts=list(ranked.values()),
        places=list(ranked),
        unresolved=[Unresolved(index=place, id=ids[place], error=reason) for place in ids if texts[place] is None],
    )
