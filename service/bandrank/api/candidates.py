"""Registering candidates by id, in one body or as a stream of lines."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request

from bandrank.api.body import read_body
from bandrank.api.dependencies import ServiceOfApp
from bandrank.api.parsing import body_schema, parse
from bandrank.api.schemas import (
    DeleteRequest,
    DeleteResponse,
    ErrorBody,
    LineError,
    RegisteredCandidate,
    RegisterRequest,
    RegisterResponse,
)
from bandrank.api.service import Service
from bandrank.errors import InputTooLarge, InvalidInput, Overloaded

router = APIRouter()

LINES_AT_ONCE = 256  # stored and encoded together; a stream is read as fast as that goes
ERRORS_TOLD = 20
NDJSON = "application/x-ndjson"


@router.put(
    "/candidates",
    response_model=RegisterResponse,
    responses={status: {"model": ErrorBody} for status in (413, 422, 429, 500, 503, 504, 507)},
    openapi_extra=body_schema(RegisterRequest, also={NDJSON: RegisteredCandidate}),
)
async def register(request: Request, service: ServiceOfApp) -> RegisterResponse:
    """Registers candidates, which later requests may name by id, and encodes them for the scorer that precomputes.

    As application/x-ndjson, one candidate a line, a body may be of any length; lines that cannot be read are reported.
    """
    if request.headers.get("content-type", "").split(";")[0].strip() == NDJSON:
        return await _register_lines(service, _lines(request, service.settings.max_body_bytes))
    wanted = parse(RegisterRequest, await read_body(request, service.settings.max_body_bytes))
    return RegisterResponse(
        registered=len({candidate.id for candidate in wanted.candidates}),
        encoded=await _register(service, wanted.candidates),
    )


@router.delete(
    "/candidates",
    response_model=DeleteResponse,
    responses={status: {"model": ErrorBody} for status in (413, 422, 503)},
    openapi_extra=body_schema(DeleteRequest),
)
async def delete(request: Request, service: ServiceOfApp) -> DeleteResponse:
    """Forgets registered candidates."""
    wanted = parse(DeleteRequest, await read_body(request, service.settings.max_body_bytes))
    return DeleteResponse(deleted=await service.candidates.delete_many(wanted.ids))


async def _register(service: Service, candidates: list[RegisteredCandidate]) -> int:
    """Stores and encodes candidates; the last one of an id counts. Returns how many texts were encoded."""
    texts = {candidate.id: candidate.text for candidate in candidates}
    await service.candidates.put_many(texts)
    if "fast" not in service.reranker.stages or not texts:
        return 0
    return await service.reranker.precompute(list(texts.values()))


async def _register_lines(service: Service, lines: AsyncIterator[bytes]) -> RegisterResponse:
    answer = RegisterResponse(registered=0, encoded=0)
    number = 0
    waiting: list[RegisteredCandidate] = []

    async def flush() -> None:
        while True:
            try:
                answer.encoded += await _register(service, waiting)
                break
            except Overloaded as error:  # a stream can wait: it is read no further meanwhile
                await asyncio.sleep(max(0.1, error.retry_after_s))
        answer.registered += len({candidate.id for candidate in waiting})
        waiting.clear()

    async for line in lines:
        number += 1
        if line.strip():
            try:
                waiting.append(parse(RegisteredCandidate, line))
            except InvalidInput as error:
                answer.num_errors += 1
                if len(answer.errors) < ERRORS_TOLD:
                    answer.errors.append(LineError(line=number, error=str(error)))
        if len(waiting) == LINES_AT_ONCE:
            await flush()
    await flush()
    return answer


async def _lines(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body's lines. Raises InputTooLarge for a line of more than `max_bytes`."""
    rest = b""
    async for chunk in request.stream():
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield line
        if len(rest) > max_bytes:
            raise InputTooLarge(f"a line is longer than {max_bytes} bytes; end each candidate with a newline")
    yield rest
