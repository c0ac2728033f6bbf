"""Passes on every request that is not for the proxy itself, and re-ranks some of the answers."""

import logging
import time
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from bandrank.api.disconnects import unless_gone
from bandrank.api.service import Service
from bandrank.engine.memory import Account
from bandrank.errors import BadGateway, BandrankError, GatewayTimeout, Overloaded, ShareUsed
from bandrank.proxy.downstream import Downstream
from bandrank.proxy.error_responses import answer_of
from bandrank.proxy.fetching import OK
from bandrank.proxy.headers import to_client, to_upstream
from bandrank.proxy.multi_searches import MultiSearches
from bandrank.proxy.outcomes import (
    ENGINE_ERROR,
    PASSED,
    FailReason,
    Mark,
    Outcome,
    SentAsItCame,
    SkipReason,
    status_header,
)
from bandrank.proxy.rerank_options import RerankRules
from bandrank.proxy.search_request import MULTI_SEARCH, indices_of
from bandrank.proxy.searches import Reply, Searches
from bandrank.proxy.upstream import Upstream

log = logging.getLogger(__name__)


class Forwarding:
    """The ASGI application for all paths but the proxy's own."""

    def __init__(
        self,
        service: Service,
        upstream: Upstream,
        rules: RerankRules,
        searches: Searches,
        multi_searches: MultiSearches,
    ) -> None:
        self._service, self._upstream, self._rules = service, upstream, rules
        self._searches, self._multi_searches = searches, multi_searches
        self._metrics = service.metrics.proxy
        for reason in (*SkipReason, *FailReason):
            self._metrics.unranked.labels(reason)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.monotonic()
        client = Downstream(scope, receive, send)
        marks: Sequence[Mark] = ()
        try:
            marks = await unless_gone(client.hung_up(), self._answer(client))
        except ClientDisconnect:
            pass
        except Exception as error:
            if isinstance(error, BadGateway | GatewayTimeout | Overloaded):
                # A request beyond its client's share says nothing about the engine, and is not counted.
                marks = [] if isinstance(error, ShareUsed) else [Mark(Outcome.UNANSWERED)]
            elif not isinstance(error, BandrankError):
                log.exception("a request failed unexpectedly")
            if client.started:  # the closed connection tells the client
                log.warning("an answer was cut short: %s", error)
            else:
                await answer_of(error)(scope, receive, send)
        finally:
            for mark in marks:
                self._metrics.requests.labels(mark.outcome).inc()
                self._metrics.request_seconds.labels(mark.outcome).observe(time.monotonic() - start)
                if mark.reason:
                    self._metrics.unranked.labels(mark.reason).inc()

    async def _answer(self, client: Downstream) -> Sequence[Mark]:
        """Answers a request, and returns what became of it, or of each of its searches.

        Raises ClientDisconnect and what `Upstream.exchange` raises.
        """
        # Held to the end, since the request that was kept may have to be sent again.
        with self._service.memory.account(client.sender) as account:
            reply: Reply | None = None
            marks: Sequence[Mark] = [PASSED]
            try:
                reply = await self._reranked(client, account)
            except SentAsItCame as sent:
                marks = sent.marks
            if reply is None:  # the error is gone, and what it held
                return await self._pass_through(client, marks)
            await client.answer(reply.status, [*reply.headers, status_header(reply.marks)], reply.body)
            for ranked in reply.ranked:
                self._service.when_answered(*ranked)
            return reply.marks

    async def _reranked(self, client: Downstream, account: Account) -> Reply | None:
        """The re-ranked answer to one or several searches; None for another request, or if nobody asks to re-rank it.

        Raises SentAsItCame, ClientDisconnect and what `Upstream.exchange` raises.
        """
        indices = indices_of(client.method, client.raw_path)
        if indices is not None:
            options = self._rules.options_for(client.headers, indices)
            return None if options is None else await self._searches.run(client, options, account)
        indices = indices_of(client.method, client.raw_path, MULTI_SEARCH)
        if indices is not None and self._rules.may_ask(client.headers):
            return await self._multi_searches.run(client, indices, account)
        return None

    async def _pass_through(self, client: Downstream, marks: Sequence[Mark]) -> Sequence[Mark]:
        """Sends the request as it came and streams the answer back, with a status header if re-ranking was asked for.

        If this request gets an error as well, that of the deeper one was no failure to re-rank.
        """
        headers = to_upstream(client.headers, host=self._upstream.host, client=client.address)
        exchange = self._upstream.exchange(client.method, client.target, headers, client.stream(), client=client.sender)
        async with exchange as answer:
            if answer.status != OK:
                marks = [ENGINE_ERROR if mark.outcome is Outcome.FAILED else mark for mark in marks]
            asked = any(mark != PASSED for mark in marks)
            handed_on = to_client(answer.status, answer.headers)
            await client.start(answer.status, [*handed_on, status_header(marks)] if asked else handed_on)
            async for part in answer.parts:
                await client.hand_on(part)
        await client.end()
        return marks
