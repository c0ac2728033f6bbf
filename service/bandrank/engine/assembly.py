"""From loaded models and settings to stages that are ready to score."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from bandrank.dtypes import DTYPES
from bandrank.engine.batching import TaskQueue
from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import fingerprint
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.stage import Stage, StageName
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.models.fusion import Fusion
from bandrank.models.loading import LoadedModel
from bandrank.models.placement import usable_device
from bandrank.settings import Settings


@dataclass(frozen=True)
class StageModels:
    """The models to serve: one that precomputes, one that need not, or both for a cascade."""

    fast: LoadedModel | None = None
    accurate: LoadedModel | None = None

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """A model served alone."""
        return cls(fast=model) if model.scorer.precomputes else cls(accurate=model)

    def __post_init__(self) -> None:
        if not self.by_stage():
            raise ValueError("no model to serve")
        if self.fast is not None and not self.fast.scorer.precomputes:
            raise BadSetting(
                "fast_model",
                f"must be a scorer that precomputes, {self.fast.name} is a {self.fast.scorer.architecture}",
            )
        if self.fusion is not None and self.fast is None:
            raise BadSetting("fast_model", f"must be {self.fusion.scorer}: {self.main.name} adds to its scores")

    @property
    def main(self) -> LoadedModel:
        """The model that the service is named after."""
        return next(reversed(self.by_stage().values()))

    @property
    def fusion(self) -> Fusion | None:
        """What the accurate scorer's scores are summed with, if with anything."""
        return self.accurate.fusion if self.accurate is not None else None

    def by_stage(self) -> dict[StageName, LoadedModel]:
        """Those that are there, in the order in which a cascade runs them."""
        named: dict[StageName, LoadedModel | None] = {"fast": self.fast, "accurate": self.accurate}
        return {name: model for name, model in named.items() if model is not None}


@dataclass(frozen=True)
class StageBuilder:
    """Makes stages that share a queue, a device and a Redis."""

    settings: Settings
    queue: TaskQueue
    redis: RedisClient | None
    metrics: Metrics
    clock: Callable[[], float]
    device: torch.device
    dtype: torch.dtype

    def build(self, name: StageName, model: LoadedModel) -> Stage:
        """The model's stage; its weights are moved to the device. Raises BadSetting if its kernels cannot run there."""
        settings, scorer = self.settings, model.scorer
        scorer.prepare(
            device=self.device, dtype=self.dtype, backend=settings.kernels, graphs=settings.cuda_graphs != "off"
        )
        if settings.kernels == "cuda" and (reason := scorer.why_no_kernels()):
            raise BadSetting("kernels", f"cannot be cuda for {model.name}: {reason}")
        # A fast scorer has no graphs, and that is no reason to do without the accurate one's.
        if settings.cuda_graphs == "on" and name == "accurate" and (reason := scorer.why_no_graphs()):
            raise BadSetting("cuda_graphs", f"cannot be on for {model.name}: {reason}")
        codec = cache = None
        if scorer.precomputes:
            codec = RepresentationCodec(scorer.representation_size, settings.cache_dtype)
            cache = RepresentationCache(
                fingerprint(scorer, model.tokenizer, settings.cache_dtype),
                codec,
                memory_bytes=settings.cache_memory_bytes,
                redis=self.redis,
                ttl_s=settings.cache_ttl_s or None,
                metrics=self.metrics,
            )
        tokenizer = RequestTokenizer(
            model.tokenizer,
            scorer,
            cache_bytes=settings.token_cache_bytes,
            num_threads=settings.tokenizer_threads or max(1, (os.cpu_count() or 1) // 2),
            metrics=self.metrics,
        )
        return Stage(name, scorer, tokenizer, self.queue, cache=cache, codec=codec, clock=self.clock)


def connect(settings: Settings, metrics: Metrics) -> RedisClient | None:
    """The client of the Redis that the settings name, if any. Raises BadSetting."""
    if not settings.redis_url:
        return None
    try:
        return RedisClient.from_url(settings.redis_url, timeout_s=settings.redis_timeout_s, metrics=metrics)
    except ValueError as error:
        raise BadSetting("redis_url", f"cannot be used: {error}") from error


def choose_device(settings: Settings) -> tuple[torch.device, torch.dtype]:
    """Where and in what dtype to score. "auto" is a GPU in float16 if there is one, else the CPU in float32.

    Raises BadSetting for a device that is not there.
    """
    name = settings.device if settings.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = usable_device(name)
    except ValueError as error:
        raise BadSetting("device", f"must be auto, cpu, cuda or cuda:N, got {name!r}: {error}") from error
    if settings.dtype == "auto":
        return device, torch.float32 if device.type == "cpu" else torch.float16
    return device, DTYPES[settings.dtype]
