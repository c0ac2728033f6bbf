"""The endpoints of all dialects: a body in, a ranking out."""

import time
from dataclasses import replace
from functools import cache, partial, reduce
from operator import or_
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from bandrank.api.admission import REFUSALS, SECURED, RankingAccount
from bandrank.api.description import errors, new_router
from bandrank.api.dialects import DIALECTS, dialect_of
from bandrank.api.dialects.costs import CUTS_IN_200, cut_headers, cuts_of
from bandrank.api.dialects.dialect import Dialect, Exchange, check_lengths
from bandrank.api.disconnects import hung_up, unless_gone
from bandrank.api.parsing import FEW_FIELDS, Json, load, read_body, validated
from bandrank.api.responses import ANSWER_BYTES, JsonInParts
from bandrank.api.schemas import bodies_schema
from bandrank.api.service import Service, ServiceOfApp
from bandrank.engine.calls import Call, answer
from bandrank.engine.memory import Account
from bandrank.engine.registry import CallCandidate
from bandrank.errors import InputTooLarge, InvalidInput

CANDIDATE_FIELDS = 64  # the most in a body, for each candidate that a ranking may have: a document may have fields
TEXTS_AT_ONCE = 128  # takes 4 ms if each has 64 fields that lie deep
BUDGET_HEADER = "X-Budget-Ms"
BUDGET_PARAMETER = {
    "name": BUDGET_HEADER,
    "in": "header",
    "description": "Milliseconds until the answer is due, if the body does not say.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
MODEL_PARAMETER = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "The name of the model, if the body does not say.",
    "schema": {"type": "string"},
}
# Only JSON's numbers: float() also takes "1_000" and "nan".
BUDGET_MS = TypeAdapter(Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)])


@cache
def routers() -> tuple[APIRouter, ...]:
    """A router for each path, made once: building their descriptions takes a tenth of a second."""
    return tuple(_router_of(path, dialects) for path, dialects in DIALECTS.items())


def _router_of(path: str, dialects: tuple[Dialect[Any], ...]) -> APIRouter:
    router = new_router()
    last = dialects[-1]
    parameters = [BUDGET_PARAMETER, MODEL_PARAMETER] if "{model" in path else [BUDGET_PARAMETER]

    @router.post(
        path,
        response_model=reduce(or_, dict.fromkeys(dialect.response for dialect in dialects)),
        responses=CUTS_IN_200
        | errors(*REFUSALS, 404, 413, 415, 500, 503, 504, body=last.error)
        | errors(422, body=last.error_of(422)),
        openapi_extra=bodies_schema(dialects) | SECURED | {"parameters": parameters},
    )
    async def rerank(request: Request, service: ServiceOfApp, account: RankingAccount) -> Response:
        """Ranks candidates by relevance to a query.

        If the path takes several formats, the fields of the body tell them apart.
        """
        start = time.monotonic()
        header_s = _budget_of_header(request)
        max_fields = max(FEW_FIELDS, CANDIDATE_FIELDS * service.max_candidates)
        body = await read_body(request, service.max_body_bytes, account, max_fields)
        dialect, wanted, call = await _read(dialects, body, service, account)
        budget_s = call.budget_s if call.budget_s is not None else header_s
        call = replace(
            call,
            model=call.model or request.path_params.get("model"),
            any_model=call.any_model and service.any_model,
            budget_s=None if budget_s is None else budget_s - (time.monotonic() - start),
        )
        answered = await unless_gone(hung_up(request), answer(call, service.models, service.registry, account))
        exchange = Exchange(wanted, call, answered, time.monotonic() - start)
        size = await service.pace.run(account.client, _documents_size, dialect, exchange, service.max_answer_bytes)
        account.hold(ANSWER_BYTES * size)
        content = await service.pace.run(account.client, dialect.write, exchange)
        when_sent = partial(service.when_answered, call, answered)
        headers = {**dialect.headers(exchange), **cut_headers(cuts_of(answered.ranking))}
        return JsonInParts(content, headers, when_sent=when_sent)

    return router


async def _read(
    dialects: tuple[Dialect[Any], ...], body: Json, service: Service, account: Account
) -> tuple[Dialect[Any], Any, Call]:
    """A body's dialect, its request and its call. Raises InvalidInput, and InputTooLarge for too many candidates."""
    pace, client = service.pace, account.client
    content = await pace.run(client, load, body)
    dialect = dialect_of(content, dialects)
    check_lengths(content, dialect.request, service.max_candidates)
    wanted = await pace.run(client, validated, dialect.request, content)
    call = dialect.read(wanted)
    if dialect.texts is not None:
        texts = await pace.listed(client, dialect.texts(wanted), TEXTS_AT_ONCE)
        call = replace(call, candidates=[CallCandidate(text) for text in texts])
    return dialect, wanted, call


def _documents_size(dialect: Dialect[Any], exchange: Exchange[Any], max_bytes: int) -> int:
    """The size of the results' documents, in bytes of JSON. Raises InputTooLarge if it is more than `max_bytes`."""
    size = 0
    for candidate in exchange.results if exchange.call.return_texts else ():
        size += len(to_json(dialect.document(exchange, candidate.index)))
        if size > max_bytes:
            raise InputTooLarge(
                f"the texts of the results are larger than {max_bytes} bytes; ask for fewer with top_n, or do without "
                "return_documents"
            )
    return size


def _budget_of_header(request: Request) -> float | None:
    """The budget in the header, in seconds; None without the header. Raises InvalidInput."""
    text = request.headers.get(BUDGET_HEADER)
    if text is None:
        return None
    try:
        return BUDGET_MS.validate_json(text) / 1000
    except ValidationError:
        raise InvalidInput(f"header {BUDGET_HEADER}: expected milliseconds above 0, got {text[:40]!r}") from None
