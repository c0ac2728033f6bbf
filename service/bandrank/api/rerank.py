"""The endpoint of each dialect: a body in, a ranking out."""

import asyncio
import math
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from bandrank.api.admission import REFUSALS, admitted
from bandrank.api.dialects.dialect import Dialect, results_of
from bandrank.api.keys import Scope
from bandrank.api.parsing import body_schema, media_type, read_body
from bandrank.api.service import ServiceOfApp
from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.clients import Client
from bandrank.errors import InputTooLarge, InvalidInput

T = TypeVar("T")
BUDGET_HEADER = "X-Budget-Ms"
BUDGET_PARAMETER = {
    "name": BUDGET_HEADER,
    "in": "header",
    "description": "Milliseconds until the answer is due, where the body says nothing.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def router_of(dialect: Dialect) -> APIRouter:
    """A router with the dialect's endpoint at each of its paths."""
    router = APIRouter()

    async def rerank(
        request: Request, service: ServiceOfApp, client: Annotated[Client, Depends(admitted(Scope.RANK))]
    ) -> Response:
        """Puts candidates in order of relevance to a query."""
        start = time.monotonic()
        media_type(request)
        call = dialect.read(await read_body(request, service.max_body_bytes), service.max_candidates)
        budget_s = call.budget_s if call.budget_s is not None else _budget_of_header(request)
        left_s = None if budget_s is None else budget_s - (time.monotonic() - start)
        work = answer(replace(call, budget_s=left_s, client=client), service.models, service.registry)
        answered = await _unless_gone(request, work)
        _check_size(call, answered, service.max_answer_bytes)
        return Response(dialect.write(call, answered, time.monotonic() - start), media_type="application/json")

    for path in dialect.paths:
        router.add_api_route(
            path,
            rerank,
            methods=["POST"],
            response_model=dialect.response,
            responses={status: {"model": dialect.error} for status in (*REFUSALS, 404, 413, 415, 422, 500, 503, 504)},
            openapi_extra=body_schema(dialect.request) | {"parameters": [BUDGET_PARAMETER]},
        )
    return router


def _check_size(call: Call, answered: Answer, max_bytes: int) -> None:
    """Raises InputTooLarge if the texts of the results, as JSON, are larger than `max_bytes`."""
    if not call.return_texts:
        return
    left = max_bytes
    for candidate in results_of(call, answered):
        left -= len(to_json(answered.texts[candidate.index]))
        if left < 0:
            raise InputTooLarge(
                f"the texts of the results are larger than {max_bytes} bytes; ask for fewer with top_n, or do without "
                "return_documents"
            )


def _budget_of_header(request: Request) -> float | None:
    """The header's milliseconds in seconds; None without the header. Raises InvalidInput."""
    text = request.headers.get(BUDGET_HEADER)
    if text is None:
        return None
    budget_ms = math.nan
    with suppress(ValueError):
        budget_ms = float(text)
    if not 0 < budget_ms < math.inf:
        raise InvalidInput(f"header {BUDGET_HEADER}: expected milliseconds above 0, got {text[:40]!r}")
    return budget_ms / 1000


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. If the client hangs up first, cancels the work and raises ClientDisconnect."""

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
