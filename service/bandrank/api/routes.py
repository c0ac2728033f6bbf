"""The endpoints."""

import asyncio
import time
import uuid
from collections.abc import Awaitable
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Request, Response
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from bandrank.api.body import read_body
from bandrank.api.schemas import (
    DocumentOut,
    ErrorBody,
    Meta,
    RerankRequest,
    RerankResponse,
    Result,
    TimingsMs,
    Usage,
)
from bandrank.api.service import Service
from bandrank.engine.reranker import Ranking
from bandrank.errors import InputTooLarge, InvalidInput, NotReady, UnknownModel
from bandrank.metrics import CONTENT_TYPE

router = APIRouter()

T = TypeVar("T")
Float32s = npt.NDArray[np.float32]

REQUEST_SCHEMA = RerankRequest.model_json_schema(ref_template="#/components/schemas/{model}")


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOfApp = Annotated[Service, Depends(_service)]


@router.post(
    "/rerank",
    response_model=RerankResponse,
    responses={status: {"model": ErrorBody} for status in (404, 413, 422, 429, 500, 503, 504)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {key: part for key, part in REQUEST_SCHEMA.items() if key != "$defs"}}
            },
        }
    },
)
async def rerank(request: Request, service: ServiceOfApp) -> Response:
    """Puts candidates in order of relevance to a query."""
    begun = time.monotonic()
    body = await read_body(request, service.settings.max_body_bytes)
    wanted = _parse(body)
    texts = wanted.texts
    if len(texts) > service.settings.max_candidates:
        raise InputTooLarge(
            f"{len(texts)} candidates are more than the {service.settings.max_candidates} that one request may have"
        )
    if wanted.model and wanted.model not in service.model_names:
        raise UnknownModel(f"model {wanted.model[:100]!r} is not served here; this is {service.model_name!r}")
    ranking = await _unless_gone(request, service.reranker.rerank(wanted.query, texts))
    answer = _answer(wanted, texts, ranking, model=service.model_name, total_s=time.monotonic() - begun)
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


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


def _parse(body: bytes) -> RerankRequest:
    """The validated request. Raises InvalidInput with a sentence per fault, the first three of them."""
    try:
        return RerankRequest.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        sentences = [
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))))
            for fault in faults[:3]
        ]
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise InvalidInput("; ".join(sentences) + more) from None


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


def _answer(wanted: RerankRequest, texts: list[str], ranking: Ranking, *, model: str, total_s: float) -> RerankResponse:
    scores = np.array([candidate.score for candidate in ranking.candidates], np.float32)
    if not wanted.raw_scores:
        scores = sigmoid(scores)
    items = wanted.items
    results = []
    for candidate, score in zip(ranking.candidates[: wanted.top_n or None], scores.tolist(), strict=False):
        item = items[candidate.index]
        results.append(
            Result(
                index=candidate.index,
                id=None if isinstance(item, str) else item.id,
                relevance_score=score,
                document=DocumentOut(text=texts[candidate.index]) if wanted.return_documents else None,
            )
        )
    timings = ranking.timings
    return RerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=model,
        results=results,
        usage=Usage(prompt_tokens=ranking.num_tokens, total_tokens=ranking.num_tokens),
        meta=Meta(
            timings_ms=TimingsMs(
                tokenize=_ms(timings.tokenize_s),
                queue=_ms(timings.queue_s),
                score=_ms(timings.score_s),
                total=_ms(total_s),
            ),
            truncated_query_tokens=ranking.truncated_query_tokens,
            truncated_tokens=ranking.truncated_query_tokens + sum(ranking.truncated_candidate_tokens),
            truncated_candidates=sum(cut > 0 for cut in ranking.truncated_candidate_tokens),
            score="raw" if wanted.raw_scores else "sigmoid",
        ),
    )


def sigmoid(scores: Float32s) -> Float32s:
    """1 / (1 + exp(-x)) in float32, without overflow on either side."""
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1 / (1 + small), small / (1 + small))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
