"""Puts the hits of an engine's answer in order of relevance, with the models of this process."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bandrank.api.dialects.dialect import shown_scores
from bandrank.api.parsing import num_values
from bandrank.api.service import Service
from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.memory import Account
from bandrank.engine.registry import CallCandidate
from bandrank.errors import BandrankError
from bandrank.proxy.fetching import UNREADABLE, VALUE_BYTES, hold, unreadable
from bandrank.proxy.hits import NO_TEXT_SCORE, Placed, SearchAnswer
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.outcomes import FailReason, Mark, Outcome, Unusable
from bandrank.proxy.search_request import SearchRequest

log = logging.getLogger(__name__)

ANSWER_BYTES = 2  # of memory for each byte of an answer, besides its text: what is written, and what is being sent
ENGINE_SHARE = 0.9  # of the budget: the rest is for merging what was scored

Ranked = tuple[Call, Answer]


@dataclass(frozen=True)
class Reordered:
    """The answer to a search. ranked: how its hits were ranked, if they were."""

    mark: Mark
    body: bytes
    ranked: Ranked | None = None


@dataclass(frozen=True)
class _Order:
    """The hits of an answer in their new order. best: the new `max_score`, if that changes.  ranked: as above."""

    mark: Mark
    hits: Sequence[Placed]
    best: float | None = None
    ranked: Ranked | None = None


class Reordering:
    """Re-ranks the hits of answers; if that fails, they keep the engine's order."""

    def __init__(self, service: Service, large_json: LargeJson) -> None:
        self._service, self._json = service, large_json

    async def reordered(
        self,
        body: bytes | bytearray,
        search: SearchRequest,
        account: Account,
        *,
        spent_s: float = 0.0,
    ) -> Reordered:
        """The page of the re-ranked hits that the client asked for. Raises Unusable.

        spent_s: seconds of the budget that are gone.
        """
        client, size = account.client, len(body)
        with self._service.memory.account(client) as while_read:
            try:
                values = await self._json.run(client, size, num_values, body)
                hold(while_read, size + VALUE_BYTES * values)
                hold(account, ANSWER_BYTES * size)
                found = await self._json.run(client, size, SearchAnswer, body, search.options.depth)
                if found.refused:
                    raise Unusable(FailReason.ENGINE_REFUSED)
                texts = await self._json.run(client, size, found.texts, search.options.fields)
                scores = await self._json.run(client, size, found.scores)
                hold(account, sum(map(sys.getsizeof, texts)))
            except UNREADABLE as error:
                raise unreadable(error) from None
            hits = [CallCandidate(text, score=score) for text, score in zip(texts, scores, strict=True)]
            order = await self._order(hits, search, account, search.options.budget_ms / 1000 - spent_s)
            page = order.hits[search.start : search.start + search.size]
            written = await self._json.run(client, size, found.write, page, added=search.added, best=order.best)
        return Reordered(order.mark, written, order.ranked)

    async def _order(
        self, hits: Sequence[CallCandidate], search: SearchRequest, account: Account, budget_s: float
    ) -> _Order:
        """The order of relevance, or the engine's if ranking fails. Hits without a text come last, in the engine's."""
        with_text = [index for index, hit in enumerate(hits) if hit.text]
        mark = Mark(Outcome.RERANKED, hits=len(hits), without_text=len(hits) - len(with_text))
        if not hits:
            return _Order(mark, [])
        if not with_text:
            return _engine_order(len(hits), FailReason.NO_TEXT)
        if budget_s <= 0:
            return _engine_order(len(hits), FailReason.DEADLINE)
        call = Call(
            query=search.query,
            candidates=[hits[index] for index in with_text],
            model=search.options.model,
            strategy=search.options.strategy,
            budget_s=ENGINE_SHARE * budget_s,
        )
        try:
            async with asyncio.timeout(budget_s):
                answered = await answer(call, self._service.models, self._service.registry, account)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets its hits
            return _engine_order(len(hits), _reason_of(error))
        ranked, mark = answered.ranking.candidates, replace(mark, degraded=answered.ranking.degraded)
        scores = shown_scores(call, ranked)
        best_first = [Placed(with_text[each.index], score) for each, score in zip(ranked, scores, strict=True)]
        best_first += [Placed(index, NO_TEXT_SCORE) for index, hit in enumerate(hits) if not hit.text]
        if search.options.score == "engine":
            return _Order(mark, [Placed(placed.index) for placed in best_first], ranked=(call, answered))
        return _Order(mark, best_first, best_first[0].score, (call, answered))


def _engine_order(num_hits: int, reason: str) -> _Order:
    return _Order(Mark(Outcome.FAILED, reason), [Placed(index) for index in range(num_hits)])


def _reason_of(error: Exception) -> str:
    """The reason to give for an error in re-ranking; an unexpected error is logged."""
    if isinstance(error, TimeoutError):
        return FailReason.DEADLINE
    if isinstance(error, BandrankError):
        return error.error_type
    log.error("re-ranking failed unexpectedly; the engine's order stays", exc_info=error)
    return FailReason.INTERNAL
