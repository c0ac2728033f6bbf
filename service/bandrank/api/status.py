"""Endpoints about the service itself: its models, its health and its metrics.

Health and metrics are also at the search proxy's paths, for whatever watches both.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from bandrank.api.admission import REFUSALS, SECURED, admitted
from bandrank.api.description import PLAIN_TEXT, errors, new_router
from bandrank.api.keys import Scope
from bandrank.api.service import ServiceOfApp
from bandrank.engine.clients import Client
from bandrank.errors import NotReady
from bandrank.metrics import CONTENT_TYPE

router = new_router()
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
FOR_RANKERS: dict[str, Any] = {
    "dependencies": [Depends(admitted(Scope.RANK))],
    "responses": errors(*REFUSALS),
    "openapi_extra": SECURED,
}


def answers_get(router: APIRouter, *paths: str, **how: Any) -> Callable[[Endpoint], Endpoint]:
    """Registers an endpoint for GET and HEAD at these paths. how: FastAPI's options."""

    def register(endpoint: Endpoint) -> Endpoint:
        for path in paths:
            router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, **how)
            router.add_api_route(path, endpoint, methods=["GET"], **how)
        return endpoint

    return register


class ModelOut(BaseModel):
    """A served model.

    id: the name that requests give in `model`. created: when the service started, in seconds since 1970.
    strategies: the names that requests may give in `strategy`.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "bandrank"
    strategies: list[str]


class ModelList(BaseModel):
    """The served models, the default one first."""

    object: str = "list"
    data: list[ModelOut]


@answers_get(router, "/v1/models", "/models", **FOR_RANKERS)
async def models(service: ServiceOfApp) -> ModelList:
    """Lists the served models, with the names that requests may give in `model` and `strategy`."""
    served = service.models.by_name.items()
    return ModelList(
        data=[ModelOut(id=name, created=service.created, strategies=model.strategies) for name, model in served]
    )


@answers_get(router, "/healthz", "/_bandrank/healthz")
async def healthz(service: ServiceOfApp) -> dict[str, str]:
    """Answers 200 if the process is alive and its scoring thread has neither died nor hung, and 503 otherwise."""
    if (reason := service.why_not_alive()) is not None:
        raise NotReady(reason)
    return {"status": "alive"}


@answers_get(router, "/readyz", "/_bandrank/readyz")
async def readyz(service: ServiceOfApp) -> dict[str, str]:
    """Answers 200 if a batch was scored in the last seconds or a self-test succeeds now, and 503 otherwise."""
    if (reason := await service.why_not_ready()) is not None:
        raise NotReady(reason)
    return {"status": "ready", "model": service.models.default.name}


# Not PlainTextResponse, which would describe errors as text too.
@answers_get(
    router,
    "/metrics",
    "/_bandrank/metrics",
    response_class=Response,
    responses={**errors(*REFUSALS), 200: {"content": PLAIN_TEXT}},
    openapi_extra=SECURED,
)
async def metrics(service: ServiceOfApp, client: Annotated[Client, Depends(admitted(Scope.ADMIN))]) -> Response:
    """Returns all metrics in Prometheus' text format."""
    return Response(await service.exposition(client), media_type=CONTENT_TYPE)
