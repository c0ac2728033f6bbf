"""The endpoints."""

import asyncio
import math
import time
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from bandrank.api.answer import answer
from bandrank.api.body import read_body
from bandrank.api.dependencies import ServiceOfApp
from bandrank.api.parsing import body_schema, parse
from bandrank.api.resolve import resolve
from bandrank.api.schemas import ErrorBody, RerankRequest, RerankResponse
from bandrank.api.service import Service
from bandrank.errors import InputTooLarge, InvalidInput, NotReady, UnknownModel
from bandrank.metrics import CONTENT_TYPE

router = APIRouter()

T = TypeVar("T")
BUDGET_HEADER = "X-Budget-Ms"


@router.post(
    "/rerank",
    response_model=RerankResponse,
    responses={status: {"model": ErrorBody} for status in (404, 413, 422, 429, 500, 503, 504)},
    openapi_extra=body_schema(RerankRequest),
)
async def rerank(request: Request, service: ServiceOfApp) -> Response:
    """Puts candidates in order of relevance to a query."""
    begun = time.monotonic()
    body = await read_body(request, service.settings.max_body_bytes)
    wanted = parse(RerankRequest, body)
    if len(wanted.items) > service.settings.max_candidates:
        raise InputTooLarge(
            f"{len(wanted.items)} candidates are more than the {service.settings.max_candidates} that one request may "
            "have"
        )
    if wanted.model and wanted.model not in service.model_names:
        raise UnknownModel(f"model {wanted.model[:100]!r} is not served here; this is {service.model_name!r}")
    budget_ms = wanted.budget_ms if wanted.budget_ms is not None else _budget_of_header(request)
    response = await _unless_gone(request, _rank(service, wanted, budget_ms, begun))
    return Response(response.model_dump_json(exclude_none=True), media_type="application/json")


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: {"model": ErrorBody}})
async def readyz(service: ServiceOfApp) -> dict[str, str]:
    """The service scores: a batch succeeded a moment ago, or a self-test does now."""
    if (reason := await service.why_not_ready()) is not None:
        raise NotReady(reason)
    return {"status": "ready", "model": service.model_name}


@router.get("/metrics")
async def metrics(service: ServiceOfApp) -> Response:
    """Prometheus' text format."""
    return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)


async def _rank(service: Service, wanted: RerankRequest, budget_ms: float | None, begun: float) -> RerankResponse:
    resolved = await resolve(service.candidates, wanted.items)
    left_s = None if budget_ms is None else budget_ms / 1000 - (time.monotonic() - begun)
    ranking = await service.reranker.rerank(
        wanted.query, resolved.texts, strategy=wanted.strategy or "auto", budget_s=left_s
    )
    return answer(
        wanted,
        resolved,
        ranking,
        model=service.model_name,
        total_s=time.monotonic() - begun,
    )


def _budget_of_header(request: Request) -> float | None:
    """Milliseconds, or None without the header. Raises InvalidInput."""
    text = request.headers.get(BUDGET_HEADER)
    if text is None:
        return None
    try:
        budget_ms = float(text)
    except ValueError:
        budget_ms = math.nan
    if not budget_ms > 0:
        raise InvalidInput(f"header {BUDGET_HEADER}: expected milliseconds above 0, got {text[:40]!r}")
    return budget_ms


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled as soon as the client hangs up. Raises ClientDisconnect then."""

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(hung_up())
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
