"""Sends a deeper search in the place of a client's, and re-ranks the hits that come back."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bandrank.api.dialects.dialect import shown_scores
from bandrank.api.parsing import TEXT_BYTES, check_values, values_at_most
from bandrank.api.service import Service
from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.memory import Account
from bandrank.engine.registry import CallCandidate
from bandrank.errors import BadGateway, BandrankError, GatewayTimeout, InvalidInput, Unreachable
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.headers import Headers, end_to_end, first, replaced, to_upstream
from bandrank.proxy.hits import NO_TEXT_SCORE, Placed, SearchAnswer
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.outcomes import FailReason, Mark, Outcome, Skipped, SkipReason, Unusable
from bandrank.proxy.search_request import JSON_TYPE, SearchRequest, read_search, unpacked
from bandrank.proxy.upstream import Upstream, UpstreamAnswer
from bandrank.proxy.wishes import Wish, query_of_header
from bandrank.settings import Settings

log = logging.getLogger(__name__)

OK, TOO_MANY_REQUESTS, SERVER_ERROR = 200, 429, 500
HANDED_ON = frozenset({401, 403, 404})  # the client's own search would get the same
# Of the time in which the engine may say nothing, so that a client that waits little longer than that may still get the
# answer to its own search, which has all of it.
DEEPER_SHARE = 0.5
VALUE_BYTES = 128  # of memory for each value of an answer: a Python object, and where it stands
ANSWER_BYTES = 3  # of memory for each byte of an answer: its text; what is written, and on its way to the client
ENGINE_SHARE = 0.9  # of the budget: the rest is for merging what was scored


@dataclass(frozen=True)
class SearchReply:
    """What the client gets. mark: what became of its search.  ranked: how its hits were ranked, if they were."""

    mark: Mark
    status: int
    headers: Headers
    body: bytes
    ranked: tuple[Call, Answer] | None = None


@dataclass(frozen=True)
class _Order:
    """The hits of an answer in their new order. best: the new `max_score`, if that changes.  ranked: as of a reply."""

    mark: Mark
    hits: Sequence[Placed]
    best: float | None = None
    ranked: tuple[Call, Answer] | None = None


class Searches:
    """Re-ranks searches through the engine of this process."""

    def __init__(self, service: Service, upstream: Upstream, settings: Settings) -> None:
        self._service, self._upstream = service, upstream
        self._json = LargeJson(service.pace)
        self._max_request_bytes = settings.max_body_bytes
        self._max_response_bytes = settings.proxy_max_response_bytes
        self._deeper_s = DEEPER_SHARE * settings.proxy_timeout_s

    async def run(self, client: Downstream, wish: Wish, account: Account) -> SearchReply:
        """Answers a search as it is wished for. A failure of the re-ranking leaves the engine's order.

        Raises Skipped and Unusable, after which the client's own request can be sent; ClientDisconnect; and
        Unreachable, Overloaded and InvalidInput, with which that would end as well.
        """
        search = await self._read(client, wish, account)
        headers = replaced(
            to_upstream(client.headers, host=self._upstream.host, client=client.address),
            accept_encoding=b"identity",
            content_encoding=None,
            transfer_encoding=None,
            content_length=b"%d" % len(search.body) if search.body else None,
            content_type=(first(client.headers, b"content-type") or b"application/json") if search.body else None,
        )
        target = client.raw_path + b"?" + search.target_query
        exchange = self._upstream.exchange(client.method, target, headers, search.body, timeout_s=self._deeper_s)
        try:
            async with exchange as deeper:
                _check_status(deeper.status)
                collected, values = await self._collect(deeper, account)
        except Unreachable:
            raise
        except GatewayTimeout as error:
            raise Unusable(FailReason.ENGINE_TIMEOUT) from error
        except BadGateway as error:
            raise Unusable(FailReason.ENGINE_FAILED) from error
        if deeper.status != OK:
            order, body = _Order(Mark(Outcome.SKIPPED, SkipReason.ENGINE_ERROR), []), bytes(collected)
        else:
            order, body = await self._reordered(deeper, collected, values, search, wish, account)
        sent = replaced(end_to_end(deeper.headers), content_length=b"%d" % len(body))
        return SearchReply(order.mark, deeper.status, sent, body, order.ranked)

    async def _read(self, client: Downstream, wish: Wish, account: Account) -> SearchRequest:
        query = query_of_header(client.headers)
        try:
            body = await client.read(self._max_request_bytes, account)
            if body is None:
                raise Skipped(SkipReason.LARGE_REQUEST)
            packed = bool(first(client.headers, b"content-encoding"))
            content, values = await self._json.run(
                account.client,
                self._max_request_bytes if packed else len(body),
                _unpacked,
                body,
                client.headers,
                self._max_request_bytes,
            )
            account.hold(TEXT_BYTES * len(content) + VALUE_BYTES * values)
            return await self._json.run(
                account.client, len(content), read_search, wish, client.query_string, content, query
            )
        except InvalidInput:
            raise Skipped(SkipReason.LARGE_REQUEST) from None  # of too many values
        except BandrankError as error:
            raise Unusable(error.error_type) from error

    async def _collect(self, deeper: UpstreamAnswer, account: Account) -> tuple[bytearray, int]:
        """The body of an answer, and how many values it has at most. Raises Unusable for one that is too large."""
        body = bytearray()  # grows in place: joining its parts would hold the event loop, and twice the memory
        values = 0
        async for part in deeper.parts:
            if len(body) + len(part) > self._max_response_bytes:
                raise Unusable(FailReason.LARGE_ANSWER)
            _hold(account, len(part))
            body += part
            values += values_at_most(part)
        return body, values

    async def _reordered(  # noqa: PLR0917
        self, deeper: UpstreamAnswer, body: bytearray, values: int, search: SearchRequest, wish: Wish, account: Account
    ) -> tuple[_Order, bytes]:
        """The re-ranked hits, and the page of them that the client asked for. Raises Unusable."""
        kind, encoding = (first(deeper.headers, name) for name in (b"content-type", b"content-encoding"))
        if not JSON_TYPE.fullmatch(kind.decode("latin-1")) or encoding not in {b"", b"identity"}:
            raise Unusable(FailReason.UNREADABLE_ANSWER)
        client, size = account.client, len(body)
        try:
            values = await self._json.run(client, size, check_values, body, values)
            _hold(account, ANSWER_BYTES * size + VALUE_BYTES * values)
            found = await self._json.run(client, size, SearchAnswer, body, wish.depth)
            texts = await self._json.run(client, size, found.texts, wish.fields)
            scores = await self._json.run(client, size, found.scores)
            _hold(account, sum(map(sys.getsizeof, texts)))
        except InvalidInput:
            raise Unusable(FailReason.LARGE_ANSWER) from None
        except (ValueError, RecursionError):
            raise Unusable(FailReason.UNREADABLE_ANSWER) from None
        hits = [CallCandidate(text, score=score) for text, score in zip(texts, scores, strict=True)]
        order = await self._order(hits, search.query, wish, account)
        page = order.hits[search.start : search.start + search.size]
        return order, await self._json.run(client, size, found.write, page, added=search.added, best=order.best)

    def close(self) -> None:
        """Ends the thread that reads large answers."""
        self._json.close()

    async def _order(self, hits: Sequence[CallCandidate], query: str, wish: Wish, account: Account) -> _Order:
        """The order of relevance, or the engine's if that fails. Those without a text come last, in the engine's."""
        with_text = [index for index, hit in enumerate(hits) if hit.text]
        mark = Mark(Outcome.RERANKED, hits=len(hits), without_text=len(hits) - len(with_text))
        if not hits:
            return _Order(mark, [])
        if not with_text:
            return _engine_order(len(hits), FailReason.NO_TEXT)
        budget_s = wish.budget_ms / 1000
        call = Call(
            query=query,
            candidates=[hits[index] for index in with_text],
            model=wish.model,
            strategy=wish.strategy,
            budget_s=ENGINE_SHARE * budget_s,
            account=account,
        )
        try:
            async with asyncio.timeout(budget_s):
                answered = await answer(call, self._service.models, self._service.registry)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets its hits
            return _engine_order(len(hits), _reason_of(error))
        ranked, mark = answered.ranking.candidates, replace(mark, degraded=answered.ranking.degraded)
        scores = shown_scores(call, ranked)
        best_first = [Placed(with_text[each.index], score) for each, score in zip(ranked, scores, strict=True)]
        best_first += [Placed(index, NO_TEXT_SCORE) for index, hit in enumerate(hits) if not hit.text]
        if wish.score == "engine":
            return _Order(mark, [Placed(placed.index) for placed in best_first], ranked=(call, answered))
        return _Order(mark, best_first, best_first[0].score, (call, answered))


def _unpacked(body: bytes, headers: Headers, max_bytes: int) -> tuple[bytes, int]:
    """The body of a search without its compression, and how many values it has. Raises Skipped and InvalidInput."""
    content = unpacked(body, headers, max_bytes)
    return content, check_values(content)


def _check_status(status: int) -> None:
    """Raises Unusable unless the answer has hits, or is what the client's own search would get, too."""
    if status == TOO_MANY_REQUESTS or status >= SERVER_ERROR:
        raise Unusable(FailReason.ENGINE_FAILED)
    if status != OK and status not in HANDED_ON:
        raise Unusable(FailReason.ENGINE_REFUSED)


def _engine_order(num_hits: int, reason: str) -> _Order:
    return _Order(Mark(Outcome.FAILED, reason), [Placed(index) for index in range(num_hits)])


def _reason_of(error: Exception) -> str:
    """The word for an error of the re-ranking; one that nobody expected is logged."""
    if isinstance(error, TimeoutError):
        return FailReason.DEADLINE
    if isinstance(error, BandrankError):
        return error.error_type
    log.error("re-ranking failed unexpectedly; the engine's order stays", exc_info=error)
    return FailReason.INTERNAL


def _hold(account: Account, num_bytes: int) -> None:
    """Takes `num_bytes` more. Raises Unusable if the account may not hold them."""
    try:
        account.hold(num_bytes)
    except BandrankError as error:
        raise Unusable(error.error_type) from error
