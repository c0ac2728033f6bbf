"""Endpoints that register candidates by id, in one body or as a stream of lines, and delete them."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from bandrank.api.admission import REFUSALS, SECURED, account_for
from bandrank.api.description import errors
from bandrank.api.keys import Scope
from bandrank.api.parsing import NDJSON, check_values, media_type, parse, read_json
from bandrank.api.schemas import body_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.batching import STOPPING
from bandrank.engine.clients import Client
from bandrank.engine.memory import Account
from bandrank.engine.registry import CandidateRegistry
from bandrank.errors import BandrankError, InputTooLarge, InvalidInput, NotReady, Overloaded

router = APIRouter()

Registering = Annotated[Account, Depends(account_for(Scope.REGISTER))]

LINES_AT_ONCE, BYTES_AT_ONCE = 256, 1 << 20  # stored and encoded together; a stream is read no faster
# Lines of a stream that are read before others have their turn, in those that are empty: a real pause, in which the
# scoring thread gets hold of the interpreter.
MAX_EFFORT, LINE_EFFORT, PAUSE_S = 4096, 15, 0.001
LOOK_S = 0.1  # between two looks, while a stream waits, whether the service stops
STREAM_COPIES = 4  # of lines that are queued, in memory: as bytes, as texts, and on their way to Redis
MAX_ERRORS = 20  # listed in a response
LINES = {  # OpenAPI 3.1 has no word for a body of several values
    "type": "string",
    "description": "A RegisteredCandidate as JSON in each line. Blank lines are skipped, and lines that cannot be read "
    "are reported in the answer.",
}
FIRST_ID = "$request.body#/candidates/0/id"
LINKS = {
    "rank": {
        "description": "From now on a request may name a candidate by its id alone.",
        "operationRef": "#/paths/~1rerank/post",
        "requestBody": {"query": "how do bees find their way home?", "candidates": [{"id": FIRST_ID}]},
    },
    "delete": {"operationRef": "#/paths/~1candidates/delete", "requestBody": {"ids": [FIRST_ID]}},
}


class RegisteredCandidate(BaseModel):
    """A candidate that later requests may name by its id."""

    id: Annotated[str, Field(min_length=1, max_length=512)]
    text: str


class RegisterRequest(BaseModel):
    """Candidates to register; an id that is registered already gets the new text."""

    candidates: list[RegisteredCandidate] = Field(fail_fast=True)


class DeleteRequest(BaseModel):
    """Ids to delete; an id that is not registered is not an error."""

    ids: list[str] = Field(fail_fast=True)


class LineError(BaseModel):
    """A line of an NDJSON upload that was not registered, counted from 1."""

    line: int
    error: str


class RegisterResponse(BaseModel):
    """The number of registered ids, and of representations computed for their texts; the others were cached.

    A stream of lines that repeats an id far apart counts it again.

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
    responses={**errors(*REFUSALS, 413, 415, 422, 500, 503, 504, 507), 200: {"links": LINKS}},
    openapi_extra=body_schema(RegisterRequest, also=dict.fromkeys(NDJSON, LINES)) | SECURED,
)
async def register(request: Request, service: ServiceOfApp, account: Registering) -> RegisterResponse:
    """Registers candidates, which later requests may name by id, and encodes them for scorers that precompute.

    As NDJSON, with one candidate a line, a body may have any length; lines that cannot be read are reported. If the
    request fails midway, the error says how many lines were registered before.
    """
    if media_type(request, NDJSON) in NDJSON:
        account.hold(STREAM_COPIES * (service.max_line_bytes + BYTES_AT_ONCE))
        return await _register_lines(service, _lines(request, service.max_line_bytes), account.client)
    body = await read_json(request, RegisterRequest, service.max_body_bytes, account, service.pace)
    for candidate in body.candidates:
        _check_text(candidate.text, service.max_line_bytes)
    return await _register(service.registry, body.candidates, account.client)


@router.delete(
    "/candidates",
    response_model=DeleteResponse,
    responses=errors(*REFUSALS, 413, 415, 422, 503),
    openapi_extra=body_schema(DeleteRequest) | SECURED,
)
async def delete(request: Request, service: ServiceOfApp, account: Registering) -> DeleteResponse:
    """Deletes registered candidates."""
    body = await read_json(request, DeleteRequest, service.max_body_bytes, account, service.pace)
    return DeleteResponse(deleted=await service.registry.store.delete_many(body.ids))


async def _register(
    registry: CandidateRegistry, candidates: list[RegisteredCandidate], client: Client
) -> RegisterResponse:
    """Stores and encodes candidates; of several with the same id the last one counts."""
    texts = {candidate.id: candidate.text for candidate in candidates}
    return RegisterResponse(registered=len(texts), encoded=await registry.register(texts, client=client))


async def _register_lines(service: Service, lines: AsyncIterator[bytes], client: Client) -> RegisterResponse:
    answer = RegisterResponse(registered=0, encoded=0)
    number = stored_lines = unreadable = queued_bytes = effort = 0
    queued: list[RegisteredCandidate] = []

    async def flush() -> None:
        nonlocal stored_lines, unreadable, queued_bytes, effort
        while True:
            try:
                part = await _register(service.registry, queued, client)
                break
            except Overloaded as error:  # a stream can wait: meanwhile it is not read any further
                if service.stopping:
                    raise
                until = time.monotonic() + error.retry_after_s
                await asyncio.sleep(LOOK_S)
                while time.monotonic() < until and not service.stopping:  # noqa: ASYNC110  # nobody sets an event
                    await asyncio.sleep(LOOK_S)
        answer.registered += part.registered
        answer.encoded += part.encoded
        stored_lines, unreadable, queued_bytes, effort = number, answer.num_errors, 0, 0
        queued.clear()

    try:
        async for line in lines:
            if len(line) > service.max_line_bytes:
                await flush()  # those before it
                raise InputTooLarge(
                    f"a line is longer than {service.max_line_bytes} bytes; end each candidate with a newline"
                )
            number += 1
            effort += LINE_EFFORT if line else 1
            if effort >= MAX_EFFORT:  # a chunk may hold thousands of lines with nothing to wait for
                await asyncio.sleep(PAUSE_S)
                effort = 0
            if line.strip():
                try:
                    check_values(line)
                    queued.append(parse(RegisteredCandidate, line))
                    queued_bytes += len(line)
                except InvalidInput as error:
                    answer.num_errors += 1
                    if len(answer.errors) < MAX_ERRORS:
                        answer.errors.append(LineError(line=number, error=str(error)))
            if len(queued) == LINES_AT_ONCE or queued_bytes >= BYTES_AT_ONCE or service.stopping:
                await flush()
            if service.stopping:
                raise NotReady(STOPPING)
        await flush()
    except BandrankError as error:
        left_out = ""
        if unreadable:
            first = answer.errors[0]
            left_out = f" but for {unreadable} that could not be read, such as line {first.line}: {first.error}"
        error.args = (f"{error} (the first {stored_lines} lines are registered{left_out})",)
        raise
    return answer


async def _lines(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body's lines, up to one of more than `max_bytes`, of which no more is read than shows that."""
    rest = bytearray()
    async for chunk in request.stream():
        *complete, last = chunk.split(b"\n")  # what came before has no end in it, and is not searched again
        for part in complete:
            rest += part
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > max_bytes:
            break
    yield bytes(rest)


def _check_text(text: str, max_bytes: int) -> None:
    if len(text) > max_bytes or (4 * len(text) > max_bytes and len(text.encode()) > max_bytes):
        raise InputTooLarge(f"a text is larger than {max_bytes} bytes; register its passages instead")
