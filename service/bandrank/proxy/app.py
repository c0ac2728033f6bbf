"""The ASGI application of `bandrank proxy`: a few paths of its own; everything else goes to the search engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from bandrank.api.access_log import AccessLog
from bandrank.api.app import RequestMetrics
from bandrank.api.hardening import HEADERS
from bandrank.api.keys import Scope as KeyScope
from bandrank.api.request_ids import RequestIds
from bandrank.api.service import Service
from bandrank.errors import BadSetting, BandrankError, NotReady, UnknownModel
from bandrank.metrics import CONTENT_TYPE
from bandrank.proxy.error_responses import answer_of
from bandrank.proxy.fetching import Fetching
from bandrank.proxy.forwarding import Forwarding
from bandrank.proxy.large_json import LargeJson
from bandrank.proxy.multi_searches import MultiSearches
from bandrank.proxy.reordering import Reordering
from bandrank.proxy.rerank_options import RerankRules, Rule, read_rules
from bandrank.proxy.searches import Searches
from bandrank.proxy.upstream import Upstream
from bandrank.settings import Settings

log = logging.getLogger(__name__)

# No index can begin with an underscore, and no path of the search engines begins like this.
HEALTH, READY, METRICS = (f"/_bandrank/{name}" for name in ("healthz", "readyz", "metrics"))


def create_proxy(service: Service, settings: Settings) -> ASGIApp:
    """The application around a service, which it starts before the first request and closes after the last.

    Raises BadSetting for an upstream or rules that cannot be used.
    """
    upstream = Upstream(settings, service.metrics)
    rules = _rules(service, settings)
    rerank_rules = RerankRules(
        rules,
        depth=min(settings.proxy_depth, settings.max_candidates),
        budget_ms=settings.proxy_budget_ms,
        max_depth=settings.max_candidates,
    )

    large_json = LargeJson(service.pace)
    fetching, reordering = Fetching(upstream, large_json, settings), Reordering(service, large_json)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        await service.start()
        log.info("ready", extra={"models": list(service.models.by_name), "rules": len(rules)})
        watching = asyncio.create_task(_watch(service))
        yield
        watching.cancel()
        await upstream.close()
        large_json.close()
        await service.close()

    async def healthz(_: Request) -> Response:
        """Reports whether the scoring thread works; without it, searches are answered in the engine's order."""
        return _said({"status": "alive"}, service.why_not_alive())

    async def readyz(_: Request) -> Response:
        """Reports whether requests are taken and re-ranked; a proxy that only passes them on is ready, too."""
        reason = await service.why_not_ready()
        return _said({"status": "ready", "reranking": reason or "ready"}, "stopping" if service.draining else None)

    async def metrics(request: Request) -> Response:
        """All metrics in Prometheus' text format."""
        try:
            client = service.admission.admit(request, KeyScope.ADMIN)
        except BandrankError as error:
            return answer_of(error)
        return Response(await service.exposition(client), headers=HEADERS, media_type=CONTENT_TYPE)

    own = [Route(HEALTH, healthz), Route(READY, readyz), Route(METRICS, metrics)]
    searches = Searches(fetching, reordering, large_json)
    multi_searches = MultiSearches(rerank_rules, fetching, reordering, large_json, service.memory)
    forwarding = Forwarding(service, upstream, rerank_rules, searches, multi_searches)
    router = Router(own, redirect_slashes=False, default=forwarding, lifespan=lifespan)
    counted = RequestMetrics(router, service.metrics, [route.path for route in own])
    return RequestIds(AccessLog(counted), answered=False)


def _rules(service: Service, settings: Settings) -> Sequence[Rule]:
    """The rules of the settings. Raises BadSetting for a model or strategy that is not served."""
    if not settings.proxy_rules:
        return ()
    rules = read_rules(Path(settings.proxy_rules), max_depth=settings.max_candidates)
    for rule in rules:
        try:
            model = service.models.find(rule.model)
        except UnknownModel as error:
            raise BadSetting(f"{settings.proxy_rules}: {rule.index}", str(error)) from None
        if rule.strategy is not None and rule.strategy not in model.strategies:
            known = ", ".join(model.strategies)
            raise BadSetting(f"{settings.proxy_rules}: {rule.index}", f"has a strategy that is not one of {known}")
    return rules


async def _watch(service: Service) -> None:
    """Stops re-ranking if the scoring thread hangs: the proxy goes on without it, and its health check fails."""
    reason = await service.until_hung()
    log.critical("%s; until then nothing is re-ranked", reason)
    service.abandon(reason)


def _said(facts: dict[str, str], why_not: str | None) -> Response:
    return JSONResponse(facts, headers=HEADERS) if why_not is None else answer_of(NotReady(why_not))
