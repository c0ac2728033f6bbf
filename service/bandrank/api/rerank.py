"""The endpoint of each dialect: a body in, a ranking out."""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from bandrank.api.admission import REFUSALS, SECURED, account_for
from bandrank.api.description import errors
from bandrank.api.dialects.dialect import Dialect, results_of
from bandrank.api.keys import Scope
from bandrank.api.parsing import body_schema, media_type, read_body
from bandrank.api.responses import JsonInParts
from bandrank.api.service import ServiceOfApp
from bandrank.engine.calls import Answer, Call, answer
from bandrank.engine.memory import Account
from bandrank.errors import InputTooLarge, InvalidInput

T = TypeVar("T")
ANSWER_BYTES = 3  # of memory for each byte of the texts: the JSON as text, encoded, and what waits to be read
BUDGET_HEADER = "X-Budget-Ms"
BUDGET_PARAMETER = {
    "name": BUDGET_HEADER,
    "in": "header",
    "description": "Milliseconds until the answer is due, where the body says nothing.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
# JSON's numbers alone: float() also takes "1_000" and "nan".
BUDGET_MS = TypeAdapter(Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)])


def router_of(dialect: Dialect) -> APIRouter:
    """A router with the dialect's endpoint at each of its paths."""
    router = APIRouter()

    async def rerank(
        request: Request, service: ServiceOfApp, account: Annotated[Account, Depends(account_for(Scope.RANK))]
    ) -> Response:
        """Puts candidates in order of relevance to a query."""
        start = time.monotonic()
        media_type(request)
        header_s = _budget_of_header(request)
        body = await read_body(request, service.max_body_bytes, account)
        call = await service.pace.run(dialect.read, body, service.max_candidates)
        budget_s = call.budget_s if call.budget_s is not None else header_s
        left_s = None if budget_s is None else budget_s - (time.monotonic() - start)
        work = answer(replace(call, budget_s=left_s, account=account), service.models, service.registry)
        answered = await unless_gone(request, work)
        size = await service.pace.run(_texts_size, call, answered, service.max_answer_bytes)
        account.hold(ANSWER_BYTES * size)
        return JsonInParts(await service.pace.run(dialect.write, call, answered, time.monotonic() - start))

    for path in dialect.paths:
        router.add_api_route(
            path,
            rerank,
            methods=["POST"],
            response_model=dialect.response,
            responses=errors(*REFUSALS, 404, 413, 415, 422, 500, 503, 504, body=dialect.error),
            openapi_extra=body_schema(dialect.request) | SECURED | {"parameters": [BUDGET_PARAMETER]},
        )
    return router


def _texts_size(call: Call, answered: Answer, max_bytes: int) -> int:
    """The bytes of the texts of the results as JSON. Raises InputTooLarge if they are more than `max_bytes`."""
    size = 0
    for candidate in results_of(call, answered) if call.return_texts else ():
        size += len(to_json(answered.texts[candidate.index]))
        if size > max_bytes:
            raise InputTooLarge(
                f"the texts of the results are larger than {max_bytes} bytes; ask for fewer with top_n, or do without "
                "return_documents"
            )
    return size


def _budget_of_header(request: Request) -> float | None:
    """The header's milliseconds in seconds; None without the header. Raises InvalidInput."""
    text = request.headers.get(BUDGET_HEADER)
    if text is None:
        return None
    try:
        return BUDGET_MS.validate_json(text) / 1000
    except ValidationError:
        raise InvalidInput(f"header {BUDGET_HEADER}: expected milliseconds above 0, got {text[:40]!r}") from None


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
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
