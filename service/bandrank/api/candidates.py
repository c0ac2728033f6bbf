"""Endpoints that register candidates by id, in one body or as a stream of lines, and delete them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from bandrank.api.dialects.native import ErrorBody
from bandrank.api.parsing import body_schema, parse, read_body
from bandrank.api.service import ServiceOfApp
from bandrank.engine.registry import CandidateRegistry
from bandrank.errors import InputTooLarge, InvalidInput, Overloaded

router = APIRouter()

LINES_AT_ONCE = 256  # stored and encoded together; a stream is read no faster
MAX_ERRORS = 20  # listed in a response
NDJSON = "application/x-ndjson"


class RegisteredCandidate(BaseModel):
    """A candidate that later requests may name by its id."""

    id: Annotated[str, Field(min_length=1, max_length=512)]
    text: str


class RegisterRequest(BaseModel):
    """Candidates to register; an id that is registered already gets the new text."""

    candidates: list[RegisteredCandidate] = Field(fail_fast=True)


class DeleteRequest(BaseModel):
    """Ids to delete; an id that is not registered is no error."""

    ids: list[str] = Field(fail_fast=True)


class LineError(BaseModel):
    """A line of an NDJSON upload that was not registered, counted from 1."""

    line: int
    error: str


class RegisterResponse(BaseModel):
    """The number of registered candidates, and of representations computed for them; the others were cached.

    errors: the first of the num_errors lines that could not be read.
    """

    registered: int
    encoded: int
    num_errors: int = 0
    errors: list[LineError] = []


class DeleteResponse(BaseModel):
    """The number of deleted ids that were registered."""

    deleted: int


@router.put(
    "/candidates",
    response_model=RegisterResponse,
    responses={status: {"model": ErrorBody} for status in (413, 422, 429, 500, 503, 504, 507)},
    openapi_extra=body_schema(RegisterRequest, also={NDJSON: RegisteredCandidate}),
)
async def register(request: Request, service: ServiceOfApp) -> RegisterResponse:
    """Registers candidates, which later requests may name by id, and encodes them for scorers that precompute.

    As application/x-ndjson, with one candidate a line, a body may have any length; lines that cannot be read are
    reported.
    """
    if request.headers.get("content-type", "").split(";")[0].strip() == NDJSON:
        return await _register_lines(service.registry, _lines(request, service.max_body_bytes))
    body = parse(RegisterRequest, await read_body(request, service.max_body_bytes))
    return await _register(service.registry, body.candidates)


@router.delete(
    "/candidates",
    response_model=DeleteResponse,
    responses={status: {"model": ErrorBody} for status in (413, 422, 503)},
    openapi_extra=body_schema(DeleteRequest),
)
async def delete(request: Request, service: ServiceOfApp) -> DeleteResponse:
    """Deletes registered candidates."""
    body = parse(DeleteRequest, await read_body(request, service.max_body_bytes))
    return DeleteResponse(deleted=await service.registry.store.delete_many(body.ids))


async def _register(registry: CandidateRegistry, candidates: list[RegisteredCandidate]) -> RegisterResponse:
    """Stores and encodes candidates; of several with the same id the last one counts."""
    texts = {candidate.id: candidate.text for candidate in candidates}
    return RegisterResponse(registered=len(texts), encoded=await registry.register(texts))


async def _register_lines(registry: CandidateRegistry, lines: AsyncIterator[bytes]) -> RegisterResponse:
    answer = RegisterResponse(registered=0, encoded=0)
    number = 0
    queued: list[RegisteredCandidate] = []

    async def flush() -> None:
        while True:
            try:
                part = await _register(registry, queued)
                break
            except Overloaded as error:  # a stream can wait: meanwhile it is not read any further
                await asyncio.sleep(max(0.1, error.retry_after_s))
        answer.registered += part.registered
        answer.encoded += part.encoded
        queued.clear()

    async for line in lines:
        number += 1
        if line.strip():
            try:
                queued.append(parse(RegisteredCandidate, line))
            except InvalidInput as error:
                answer.num_errors += 1
                if len(answer.errors) < MAX_ERRORS:
                    answer.errors.append(LineError(line=number, error=str(error)))
        if len(queued) == LINES_AT_ONCE:
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
