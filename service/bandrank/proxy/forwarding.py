"""Every request that is not for the proxy itself: passed through, or re-ranked on its way back."""

import logging
import time

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from bandrank.api.service import Service
from bandrank.errors import BadGateway, BandrankError, GatewayTimeout, Overloaded
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.failures import answer_of
from bandrank.proxy.headers import to_client, to_upstream
from bandrank.proxy.outcomes import FailReason, Mark, Outcome, Skipped, SkipReason, Unusable
from bandrank.proxy.search_request import indices_of
from bandrank.proxy.searches import OK, Searches
from bandrank.proxy.upstream import Upstream
from bandrank.proxy.wishes import Wishes

log = logging.getLogger(__name__)


class Forwarding:
    """The ASGI application of all paths but the proxy's own."""

    def __init__(self, service: Service, upstream: Upstream, wishes: Wishes, searches: Searches) -> None:
        self._service, self._upstream, self._wishes, self._searches = service, upstream, wishes, searches
        self._metrics = service.metrics.proxy
        for reason in (*SkipReason, *FailReason):
            self._metrics.unranked.labels(reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        client = Downstream(scope, receive, send)
        outcome: Outcome | None = None
        try:
            outcome = await client.unless_gone(self._answer(client))
        except ClientDisconnect:
            pass
        except Exception as error:
            if isinstance(error, BadGateway | GatewayTimeout | Overloaded):
                outcome = Outcome.UNANSWERED
            elif not isinstance(error, BandrankError):
                log.exception("a request failed unexpectedly")
            if not client.started:  # else it is cut short, which closes the connection, so that the client can tell
                await client.answer(*answer_of(error))
        finally:
            if outcome is not None:
                self._metrics.requests.labels(outcome).inc()
                self._metrics.request_seconds.labels(outcome).observe(time.monotonic() - start)

    async def _answer(self, client: Downstream) -> Outcome:
        """Answers a request. Raises ClientDisconnect and what `Upstream.exchange` raises."""
        try:
            indices = indices_of(client.method, client.raw_path)
            wish = None if indices is None else self._wishes.wish(client.headers, indices)
        except Skipped as skipped:
            return await self._pass_through(client, Mark(Outcome.SKIPPED, skipped.reason))
        if wish is None:
            return await self._pass_through(client)
        # Held to the end: what was kept of the request may have to be sent a second time.
        with self._service.memory.account(client.sender) as account:
            try:
                reply = await self._searches.run(client, wish, account)
            except Skipped as skipped:
                return await self._pass_through(client, Mark(Outcome.SKIPPED, skipped.reason))
            except Unusable as unusable:
                return await self._pass_through(client, Mark(Outcome.FAILED, unusable.reason))
            self._count(reply.mark)
            await client.answer(reply.status, [*reply.headers, reply.mark.header()], reply.body)
            if reply.ranked is not None:
                self._service.when_answered(*reply.ranked)
            return reply.mark.outcome

    async def _pass_through(self, client: Downstream, mark: Mark | None = None) -> Outcome:
        """Sends the request as it came, and hands the answer on as it comes, with the mark, if any, in a header.

        A failure to re-rank is none where this search has no hits either.
        """
        headers = to_upstream(client.headers, host=self._upstream.host, client=client.address)
        async with self._upstream.exchange(client.method, client.target, headers, client.stream()) as answer:
            if mark is not None and mark.outcome is Outcome.FAILED and answer.status != OK:
                mark = Mark(Outcome.SKIPPED, SkipReason.ENGINE_ERROR)
            handed_on = to_client(answer.status, answer.headers)
            await client.start(answer.status, [*handed_on, mark.header()] if mark is not None else handed_on)
            async for part in answer.parts:
                await client.hand_on(part)
        await client.end()
        if mark is None:
            return Outcome.PASSED
        self._count(mark)
        return mark.outcome

    def _count(self, mark: Mark) -> None:
        if mark.reason:
            self._metrics.unranked.labels(mark.reason).inc()
