"""Endpoints that register candidates by id, in one body or as a stream of lines, and delete them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from bandrank.api.admission import REFUSALS, SECURED, account_for
from bandrank.api.description import errors
from bandrank.api.disconnects import unless_gone
from bandrank.api.keys import Scope
from bandrank.api.parsing import NDJSON, check_values, media_type, parse, read_json
from bandrank.api.schemas import body_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.batching import STOPPING
from bandrank.engine.clients import Client
from bandrank.engine.memory import Account
from bandrank.engine.registry import CandidateRegistry, titled
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


def _with_either_id(schema: dict[str, Any]) -> None:
    """Adds to a schema with `id` that `_id` may take its place."""
    schema["required"].remove("id")
    schema["anyOf"] = [
        {"required": ["id"]},
        {"required": ["_id"], "properties": {"_id": schema["properties"]["id"] | {"title": "Id"}}},
    ]


class RegisteredCandidate(BaseModel):
    """A candidate that later requests may name by its id, as a line of a corpus has it.

    id: or `_id`.  title: of a document, goes before the text.
    """

    model_config = ConfigDict(json_schema_extra=_with_either_id)

    id: Annotated[str, Field(min_length=1, max_length=512, validation_alias=AliasChoices("id", "_id"))]
    title: str | None = None
    text: str

    @property
    def whole(self) -> str:
        """The text with the title."""
        return titled(self.title, self.text)


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
        _check_text(candidate.whole, service.max_line_bytes)
    registering = _register(service.registry, body.candidates, account.client, stopping=lambda: service.stopping)
    return await unless_gone(request, registering)


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
    registry: CandidateRegistry,
    candidates: list[RegisteredCandidate],
    client: Client,
    stopping: Callable[[], bool] = lambda: False,
) -> RegisterResponse:
    """Stores and encodes candidates; of several with the same id the last one counts."""
    texts = {candidate.id: candidate.whole for candidate in candidates}
    encoded = await registry.register(texts, client=client, stopping=stopping)
    return RegisterResponse(registered=len(texts), encoded=encoded)


async def _register_lines(service: Service, lines: AsyncIterator[bytes], client: Client) -> RegisterResponse:
    """Registers a stream of lines. An error that ends it says how many lines were registered before."""
    upload = _Upload(service, client)
    effort = 0
    try:
        async for line in lines:
            if len(line) > service.max_line_bytes:
                await upload.flush()  # those before it
                raise InputTooLarge(
                    f"a line is longer than {service.max_line_bytes} bytes; end each candidate with a newline"
                )
            upload.add(line)
            effort += LINE_EFFORT if line else 1
            if upload.is_full or service.stopping:
                await upload.flush()
                effort = 0
            elif effort >= MAX_EFFORT:  # a chunk may hold thousands of lines with nothing to wait for
                await asyncio.sleep(PAUSE_S)
                effort = 0
            if service.stopping:
                raise NotReady(STOPPING)
        await upload.flush()
    except BandrankError as error:
        raise error.saying(f"{error} ({upload.progress})") from error
    return upload.answer


class _Upload:
    """The lines of a stream, registered some at a time. answer: what has become of them so far."""

    def __init__(self, service: Service, client: Client) -> None:
        self.answer = RegisterResponse(registered=0, encoded=0)
        self._service, self._client = service, client
        self._num_lines = 0
        self._lines_done = self._errors_done = 0  # of those up to the last flush
        self._queued: list[RegisteredCandidate] = []
        self._queued_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the queued candidates should be registered before more are read."""
        return len(self._queued) == LINES_AT_ONCE or self._queued_bytes >= BYTES_AT_ONCE

    @property
    def progress(self) -> str:
        """Which lines are registered, and which of these could not be read."""
        unread = ""
        if self._errors_done:
            first = self.answer.errors[0]
            unread = f" but for {self._errors_done} that could not be read, such as line {first.line}: {first.error}"
        return f"the first {self._lines_done} lines are registered{unread}"

    def add(self, line: bytes) -> None:
        """Queues the candidate of the next line, if it has one that can be read."""
        self._num_lines += 1
        if not line.strip():
            return
        try:
            check_values(line)
            self._queued.append(parse(RegisteredCandidate, line))
            self._queued_bytes += len(line)
        except InvalidInput as error:
            self.answer.num_errors += 1
            if len(self.answer.errors) < MAX_ERRORS:
                self.answer.errors.append(LineError(line=self._num_lines, error=str(error)))

    async def flush(self) -> None:
        """Registers the queued candidates. A stream can wait for its turn: meanwhile it is not read any further."""
        while True:
            try:
                part = await _register(self._service.registry, self._queued, self._client)
                break
            except Overloaded as error:
                if self._service.stopping:
                    raise
                await self._wait(error.retry_after_s)
        self.answer.registered += part.registered
        self.answer.encoded += part.encoded
        self._lines_done, self._errors_done = self._num_lines, self.answer.num_errors
        self._queued, self._queued_bytes = [], 0

    async def _wait(self, seconds: float) -> None:
        """Returns after some seconds, or soon after the service was told to stop."""
        until = time.monotonic() + seconds
        await asyncio.sleep(LOOK_S)
        while time.monotonic() < until and not self._service.stopping:  # noqa: ASYNC110  # nobody sets an event
            await asyncio.sleep(LOOK_S)


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
