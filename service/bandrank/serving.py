"""Builds the engine and its served models from the settings."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from bandrank.assembly import add_text_scorer
from bandrank.dtype_choice import choose_dtype
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.candidates import CandidateStore
from bandrank.engine.engine import Engine
from bandrank.engine.policy import Role, strategies
from bandrank.engine.ranking import Stage
from bandrank.engine.registry import CandidateRegistry
from bandrank.engine.served import Models, ServedModel
from bandrank.engine.text_scorer import AnyTextScorer
from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.model_settings import Dtype, ModelSettings, Similarity
from bandrank.models.architectures.bi_encoder import BiEncoder
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.placement import usable_device
from bandrank.settings import Settings

log = logging.getLogger(__name__)

FAST, ACCURATE = "fast", "accurate"  # the stages' names
DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)
STRATEGIES = strategies([Role(FAST), Role(ACCURATE)])  # of a model with both stages; others have some of these


@dataclass(frozen=True)
class LoadedScorers:
    """The loaded scorers of a served model.

    main: the scorer that the model is named after.  fast: a scorer that precomputes and runs before it, or None.
    cascade_depth: how many candidates a cascade leaves to `main`.  served: whether requests may ask for the model.
    shadow: whether it scores the sampled requests.  first_stage_weight: weight of the scores that candidates come with,
    unless a request sets it.  pooled: as in Options, unless a request says.  aliases: further names that requests may
    use.
    Raises BadSetting if the two scorers do not fit.
    """

    name: str
    main: LoadedModel
    fast: LoadedModel | None = None
    cascade_depth: int = 30
    dtype: Dtype = "auto"
    served: bool = True
    shadow: bool = False
    first_stage_weight: float = 0.0
    pooled: bool = False
    aliases: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.fast is not None and not self.fast.scorer.precomputes:
            raise BadSetting(
                "fast_model",
                f"must be a scorer that precomputes; {self.fast.name} is a {self.fast.scorer.architecture}",
            )
        if self.main.fusion is not None and self.fast is None:
            raise BadSetting("model", f"{self.main.name} adds to the scores of {self.main.fusion.scorer}; serve both")


@dataclass(frozen=True)
class Serving:
    """The served models on a started engine, and the candidates that requests may name.

    shadow: the model that scores the sampled requests, served or not; None if there is none.
    """

    models: Models
    registry: CandidateRegistry
    shadow: ServedModel | None = None


def load_models(settings: Settings) -> list[LoadedScorers]:
    """Loads the models that the settings name, the served ones first. A scorer that adds to another's scores brings
    that scorer along.

    Models that name the same scorer with the same dtype, similarity and size of vectors share it. Raises BadCheckpoint
    and BadSetting.
    """

    @cache
    def load(model: str, revision: str, dtype: Dtype, similarity: Similarity, size: int) -> LoadedModel:
        del dtype  # part of the key, because a loaded scorer computes in one dtype
        log.info("loading %s", model)
        return load_model(
            model, revision or None, similarity=None if similarity == "auto" else similarity, size=size or None
        )

    served = settings.served_models()
    shadow = settings.shadow_among(served)

    def load_scorers(each: ModelSettings) -> LoadedScorers:
        main = load(each.model, each.revision, each.dtype, each.similarity, each.vector_size)
        partner = main.fusion.scorer if main.fusion is not None else ""
        if partner and each.fast_model not in {"", partner}:
            raise BadSetting(
                "fast_model",
                f"must be {partner}, or not be set: {main.name} adds to its scores; for another, set the model too",
            )
        name = each.fast_model or partner
        fast = load(name, each.fast_revision, each.dtype, each.similarity, each.vector_size) if name else None
        if each.vector_size:
            _require_vectors([main] if fast is None else [fast, main], each.vector_size)
        return LoadedScorers(
            each.name,
            main,
            fast,
            each.cascade_depth,
            each.dtype,
            served=each in served,
            shadow=each == shadow,
            first_stage_weight=each.first_stage_weight,
            pooled=each.pooled,
            aliases=each.aliases,
        )

    loaded = []
    for each in served if shadow is None or shadow in served else (*served, shadow):
        try:
            loaded.append(load_scorers(each))
        except BadSetting as error:
            if not settings.models:
                raise
            raise BadSetting(f"{settings.models}: {error.name} of {each.name}", error.reason) from None
    return loaded


def _require_vectors(stages: Sequence[LoadedModel], size: int) -> None:
    """Raises BadSetting unless one of these is a bi-encoder, and each that is gives vectors of `size` numbers."""
    most = {each.name: each.scorer.config.sizes[-1] for each in stages if isinstance(each.scorer, BiEncoder)}
    if not most:
        raise BadSetting("vector_size", f"needs a bi-encoder, which {stages[-1].name} is not")
    name = min(most, key=most.__getitem__)
    if size > most[name]:
        raise BadSetting("vector_size", f"must be at most {most[name]}, as many numbers as {name} gives, got {size}")


def assemble(
    loaded: Sequence[LoadedScorers],
    settings: Settings,
    *,
    clock: Callable[[], float] = time.monotonic,
    on_death: Callable[[], None] = lambda: None,
) -> Serving:
    """Starts an engine with its models. on_death is called from the scoring thread if it dies.

    Raises BadSetting for settings that this machine cannot meet.
    """
    metrics, device = Metrics(), choose_device(settings.device)
    engine = Engine(
        device,
        max_batch_rows=settings.max_batch_rows or None,
        max_waiting_rows=settings.max_waiting_rows,
        patience=settings.patience,
        request_timeout_s=settings.request_timeout_s,
        hang_timeout_s=settings.hang_timeout_s,
        redis=connect_redis(settings, metrics),
        metrics=metrics,
        clock=clock,
        on_death=on_death,
    )
    scorers: dict[int, AnyTextScorer] = {}

    def scorer_of(model: LoadedModel, dtype: Dtype) -> AnyTextScorer:
        if id(model) not in scorers:
            scorers[id(model)] = add_text_scorer(engine, model, choose_dtype(dtype, device, model), settings)
        return scorers[id(model)]

    def served(each: LoadedScorers) -> ServedModel:
        main = scorer_of(each.main, each.dtype)
        if each.fast is None:
            stages = [Stage(Role(FAST if each.main.scorer.precomputes else ACCURATE), main)]
        else:
            weight = each.main.fusion.weight if each.main.fusion is not None else None
            accurate = Role(ACCURATE, each.cascade_depth, weight)
            stages = [Stage(Role(FAST), scorer_of(each.fast, each.dtype)), Stage(accurate, main)]
        for stage in stages:
            metrics.declare_stage(stage.role.name)
        names = [model.name for model in (each.main, each.fast) if model is not None]
        short = {name.rstrip("/").rsplit("/", 1)[-1] for name in (each.name, *names)}
        aliases = frozenset(names) | short | {*each.aliases}
        dtype = main.prepared.dtype
        return ServedModel(each.name, tuple(stages), engine, dtype, aliases, each.first_stage_weight, each.pooled)

    by_name = {each.name: served(each) for each in loaded}
    models = Models([by_name[each.name] for each in loaded if each.served])
    shadow = next((by_name[each.name] for each in loaded if each.shadow), None)
    if shadow is not None:
        check_shadow_strategy(settings, shadow.strategies)
    engine.start()
    store = CandidateStore(engine.redis, max_bytes=settings.candidate_store_bytes)
    return Serving(models, CandidateRegistry(store, models, settings.max_resolved_bytes), shadow)


def choose_device(name: str) -> torch.device:
    """The named device; "auto" is a GPU if there is one, else the CPU. Raises BadSetting if there is no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not DEVICE.fullmatch(name):
        raise BadSetting("device", f"must be auto, cpu, cuda or cuda:N, got {name!r}")
    try:
        return usable_device(name)
    except ValueError as error:
        raise BadSetting("device", f"{name!r} cannot be used: {error}") from error


def check_shadow_strategy(settings: Settings, known: Sequence[str] = STRATEGIES) -> None:
    """Raises BadSetting unless the shadow's strategy is known; by default, to a model with both stages."""
    if settings.shadow_strategy and settings.shadow_strategy not in known:
        raise BadSetting("shadow_strategy", f"must be one of {', '.join(known)}, got {settings.shadow_strategy!r}")


def connect_redis(settings: Settings, metrics: Metrics) -> RedisClient | None:
    """A client of the settings' Redis, not yet connected; None if they name none. Raises BadSetting."""
    if not settings.redis_url:
        return None
    try:
        return RedisClient.from_url(settings.redis_url, timeout_s=settings.redis_timeout_s, metrics=metrics)
    except ValueError as error:
        raise BadSetting("redis_url", f"cannot be used: {error}") from error
