"""Endpoints by which clients of other services ask what is served, and whether it can answer."""

import math
import time
from typing import Literal

from fastapi import Response
from pydantic import BaseModel

from bandrank import __version__
from bandrank.api.admission import REFUSALS
from bandrank.api.description import errors, new_router
from bandrank.api.service import ServiceOfApp
from bandrank.api.status import FOR_RANKERS, ModelOut, answers_get, healthz, readyz
from bandrank.engine.embedding import gives_embeddings
from bandrank.engine.engine import Engine
from bandrank.errors import UnknownModel
from bandrank.models.placement import name_of

router = new_router()


class InfinityHealth(BaseModel):
    """The time of the answer. unix: in seconds since 1970."""

    unix: float


class InfinityStats(BaseModel):
    """How busy the engine is with all models. Work is counted in rows, most of which are tokens.

    queue_fraction: waiting rows as a fraction of the most that may wait. queue_absolute: waiting rows.
    results_pending: requests that are admitted but not answered yet. batch_size: the most rows in a batch.
    """

    queue_fraction: float
    queue_absolute: int
    results_pending: int
    batch_size: int


class InfinityModel(BaseModel):
    """A served model, and how busy the service is.

    id: the name that requests give in `model`. created: when the service started, in seconds since 1970.
    """

    id: str
    object: Literal["model"] = "model"
    owned_by: Literal["infinity"] = "infinity"  # the only owner that its client knows
    created: int
    backend: Literal["torch"] = "torch"
    capabilities: list[Literal["rerank", "embed"]]
    stats: InfinityStats


class InfinityModels(BaseModel):
    """The served models, the default one first."""

    object: Literal["list"] = "list"
    data: list[InfinityModel]


class NimHealth(BaseModel):
    """The health of the service, as NIM's clients read it."""

    object: str = "health.response"
    message: str
    status: str


class TeiReranker(BaseModel):
    """The labels of the model as a classifier: a re-ranker has one."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class TeiModelType(BaseModel):
    """What kind of model is served."""

    reranker: TeiReranker


class TeiInfo(BaseModel):
    """The default model, and what a request may contain.

    max_client_batch_size: the most texts in a request. version: bandrank's. Fields that are always null say nothing,
    but some clients fail without them.
    """

    model_id: str
    model_dtype: str
    served_model_name: str
    model_type: TeiModelType
    max_client_batch_size: int
    auto_truncate: bool = True
    version: str
    max_concurrent_requests: None = None
    max_input_length: None = None
    max_batch_tokens: None = None
    max_batch_requests: None = None
    tokenization_workers: None = None
    sha: None = None
    docker_label: None = None


class WeaviateMeta(BaseModel):
    """The default model. version: bandrank's."""

    model: str
    version: str


class XinferenceAuth(BaseModel):
    """Whether the service has keys. auth: true if clients must send one."""

    auth: bool


class XinferenceModel(ModelOut):
    """A served model, and its type.

    created: when the service started, in seconds since 1970. strategies: the names for `strategy`.
    """

    model_type: str = "rerank"


@answers_get(router, "/health", "/ping")
async def health(service: ServiceOfApp) -> dict[str, str]:
    """Answers like /readyz, for clients of text-embeddings-inference and vLLM."""
    return await readyz(service)


@answers_get(router, "/infinity/health")
async def infinity_health(service: ServiceOfApp) -> InfinityHealth:
    """Answers if the service scores, as /readyz does, for infinity's clients."""
    await readyz(service)
    return InfinityHealth(unix=time.time())


@answers_get(router, "/infinity/models", **FOR_RANKERS)
async def infinity_models(service: ServiceOfApp) -> InfinityModels:
    """Lists the served models, and how busy the service is, for infinity's clients."""
    return InfinityModels(
        data=[
            InfinityModel(
                id=name,
                created=service.created,
                capabilities=["rerank", "embed"] if gives_embeddings(model) else ["rerank"],
                stats=_stats(service.engine),
            )
            for name, model in service.models.by_name.items()
        ]
    )


@answers_get(router, "/v1/health/live")
async def nim_live(service: ServiceOfApp) -> NimHealth:
    """Answers if the process is alive, as /healthz does, for NIM's clients."""
    await healthz(service)
    return NimHealth(message="the service is alive", status="live")


@answers_get(router, "/v1/health/ready")
async def nim_ready(service: ServiceOfApp) -> NimHealth:
    """Answers if the service scores, as /readyz does, for NIM's clients."""
    await readyz(service)
    return NimHealth(message="the service is ready", status="ready")


@answers_get(router, "/.well-known/live", status_code=204)
async def weaviate_live(service: ServiceOfApp) -> Response:
    """Answers if the process is alive, as /healthz does, for Weaviate."""
    await healthz(service)
    return Response(status_code=204)


@answers_get(router, "/.well-known/ready", status_code=204)
async def weaviate_ready(service: ServiceOfApp) -> Response:
    """Answers if the service scores, as /readyz does, for Weaviate."""
    await readyz(service)
    return Response(status_code=204)


@answers_get(router, "/meta", **FOR_RANKERS)
async def weaviate_meta(service: ServiceOfApp) -> WeaviateMeta:
    """Names the default model. Weaviate asks for it when it starts."""
    return WeaviateMeta(model=service.models.default.name, version=__version__)


@answers_get(router, "/info", **FOR_RANKERS)
async def tei_info(service: ServiceOfApp) -> TeiInfo:
    """Describes the default model to clients of text-embeddings-inference."""
    model = service.models.default
    return TeiInfo(
        model_id=model.name,
        model_dtype=name_of(model.dtype),
        served_model_name=model.name,
        model_type=TeiModelType(reranker=TeiReranker(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})),
        max_client_batch_size=service.max_candidates,
        version=__version__,
    )


@answers_get(router, "/v1/cluster/auth")
async def xinference_auth(service: ServiceOfApp) -> XinferenceAuth:
    """Tells Xinference's clients whether they must send a key."""
    return XinferenceAuth(auth=service.admission.keys is not None)


@answers_get(router, "/v1/models/{name:path}", **FOR_RANKERS | {"responses": errors(*REFUSALS, 404, 422)})
async def xinference_model(name: str, service: ServiceOfApp) -> XinferenceModel:
    """Describes the model that ranks if a request gives this name. Xinference's clients ask before they rank."""
    if not name:
        raise UnknownModel("the path ends without a model's name; GET /v1/models lists them")
    model = service.models.find(name, or_default=service.any_model)
    return XinferenceModel(id=model.name, created=service.created, strategies=model.strategies)


def _stats(engine: Engine) -> InfinityStats:
    waiting_rows = engine.queue.waiting_rows
    return InfinityStats(
        queue_fraction=waiting_rows / engine.queue.max_waiting_rows,
        queue_absolute=math.ceil(waiting_rows),
        results_pending=engine.queue.num_admitted,
        batch_size=engine.worker.max_batch_rows,
    )
