"""Endpoints that register candidates by id, in one body or as a stream of lines, and delete them."""

import math
from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends, Request
from pydantic import BaseModel, Field

from bandrank.api.admission import REFUSALS, SECURED, account_for
from bandrank.api.candidate_lines import memory_of_stream, register_lines
from bandrank.api.description import errors, new_router
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.keys import Scope
from bandrank.api.parsing import NDJSON, media_type, read_json
from bandrank.api.registered import RegisteredCandidate, RegisterResponse
from bandrank.api.schemas import body_schema
from bandrank.api.service import ServiceOfApp
from bandrank.engine.memory import Account
from bandrank.errors import InputTooLarge

router = new_router()

RegisteringAccount = Annotated[Account, Depends(account_for(Scope.REGISTER))]

CHECKED_AT_ONCE = 8192  # candidates, before others get a turn
LINES = {  # OpenAPI 3.1 has no word for a body of several values
    "type": "string",
    "description": "Each line is a RegisteredCandidate as JSON. Blank lines are skipped, and lines that cannot be read "
    "are reported in the answer.",
}
FIRST_ID = "$request.body#/candidates/0/id"
LINKS = {
    "rank": {
        "description": "Later requests may name a candidate by its id alone.",
        "operationRef": "#/paths/~1rerank/post",
        "requestBody": {"query": "how do bees find their way home?", "candidates": [{"id": FIRST_ID}]},
    },
    "delete": {"operationRef": "#/paths/~1candidates/delete", "requestBody": {"ids": [FIRST_ID]}},
}


class RegisterRequest(BaseModel):
    """Candidates to register. An id that is already registered gets the new text."""

    candidates: list[RegisteredCandidate] = Field(fail_fast=True)


class DeleteRequest(BaseModel):
    """Ids to delete. Ids that are not registered are ignored."""

    ids: list[str] = Field(fail_fast=True)


class DeleteResponse(BaseModel):
    """deleted: how many of the ids were registered."""

    deleted: int


@router.put(
    "/candidates",
    response_model=RegisterResponse,
    responses={**errors(*REFUSALS, 408, 413, 415, 422, 500, 503, 504, 507), 200: {"links": LINKS}},
    openapi_extra=body_schema(RegisterRequest, also=dict.fromkeys(NDJSON, LINES)) | SECURED,
)
async def register(request: Request, service: ServiceOfApp, account: RegisteringAccount) -> RegisterResponse:
    """Registers candidates, which later requests may name by id, and encodes them for scorers that precompute.

    As NDJSON, with one candidate per line, a body may have any length. Its lines are registered some at a time, as they
    arrive; those that cannot be read are reported in the answer. If the request fails midway, the error says how many
    lines were registered.
    """
    if media_type(request, NDJSON) in NDJSON:
        account.hold(memory_of_stream(service.max_line_bytes))
        return await register_lines(service, request, account.client)
    body = await read_json(request, RegisterRequest, service.max_body_bytes, account, service.pace, max_fields=math.inf)
    texts: dict[str, str] = {}
    for start in range(0, len(body.candidates), CHECKED_AT_ONCE):
        some = body.candidates[start : start + CHECKED_AT_ONCE]
        texts |= await service.pace.run(account.client, _texts, some, service.max_line_bytes)
    registering = service.registry.register(texts, client=account.client, stopping=service.stopping.is_set)
    encoded = await unless_gone(hung_up(request), registering)
    return RegisterResponse(registered=len(texts), encoded=encoded)


@router.delete(
    "/candidates",
    response_model=DeleteResponse,
    responses=errors(*REFUSALS, 413, 415, 422, 503),
    openapi_extra=body_schema(DeleteRequest) | SECURED,
)
async def delete(request: Request, service: ServiceOfApp, account: RegisteringAccount) -> DeleteResponse:
    """Deletes registered candidates."""
    body = await read_json(request, DeleteRequest, service.max_body_bytes, account, service.pace)
    return DeleteResponse(deleted=await service.registry.store.delete_many(body.ids))


def _texts(candidates: Iterable[RegisteredCandidate], max_bytes: int) -> dict[str, str]:
    """The texts by id; the last one counts if an id is repeated. Raises InputTooLarge for a large text."""
    texts = {candidate.id: candidate.whole for candidate in candidates}
    for text in texts.values():
        if len(text) > max_bytes or (4 * len(text) > max_bytes and len(text.encode()) > max_bytes):
            raise InputTooLarge(f"a text is larger than {max_bytes} bytes; register its passages instead")
    return texts
