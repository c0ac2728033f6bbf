"""From a loaded model to a text scorer of an engine."""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from bandrank.engine.cache.codec import PayloadDtype, RepresentationCodec
from bandrank.engine.cache.keys import fingerprint
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.engine import Engine
from bandrank.engine.lanes import EncodeLane
from bandrank.engine.sources import RepresentationSource, TokenIdSource
from bandrank.engine.text_scorer import AnyTextScorer, TextScorer
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.texts import TextEncoder
from bandrank_kernels import Backend


@dataclass(frozen=True)
class ScorerOptions:
    """How scorers compute, and what is kept of their candidates.

    backend: "cuda" is our kernels or an error.  graphs: "on" is CUDA graphs or an error, where a scorer has any.
    cache_ttl_s: how long Redis keeps a representation; None for ever.  tokenizer_threads: None for one per two cores.
    """

    backend: Backend = "auto"
    graphs: Literal["auto", "on", "off"] = "auto"
    cache_dtype: PayloadDtype = "float16"
    cache_memory_bytes: int = 256 * 1024 * 1024
    cache_ttl_s: float | None = None
    token_cache_bytes: int = 64 * 1024 * 1024
    tokenizer_threads: int | None = None


def add_text_scorer(engine: Engine, model: LoadedModel, *, dtype: torch.dtype, options: ScorerOptions) -> AnyTextScorer:
    """Moves a model's weights to the engine's device and adds its text scorer to the engine.

    Raises BadSetting if kernels or graphs cannot be used that must be.
    """
    prepared = prepare(
        model.scorer, device=engine.device, dtype=dtype, backend=options.backend, graphs=options.graphs != "off"
    )
    if options.backend == "cuda" and (reason := prepared.why_no_kernels):
        raise BadSetting("kernels", f"cannot be cuda for {model.name}: {reason}")
    # A scorer that precomputes has no graphs, and that is no reason to do without those of the other scorers.
    if options.graphs == "on" and not model.scorer.precomputes and (reason := prepared.why_no_graphs()):
        raise BadSetting("cuda_graphs", f"cannot be on for {model.name}: {reason}")
    cache = representation_cache(model, options, redis=engine.redis, metrics=engine.metrics)
    return add_prepared(
        engine, model.name, prepared, TextEncoder(model.tokenizer, model.scorer), options=options, cache=cache
    )


def representation_cache(
    model: LoadedModel, options: ScorerOptions, *, redis: RedisClient | None = None, metrics: Metrics | None = None
) -> RepresentationCache | None:
    """An empty cache for a model's representations of candidates; None for a scorer that does not precompute."""
    if not model.scorer.precomputes:
        return None
    return RepresentationCache(
        fingerprint(model.scorer, model.tokenizer, options.cache_dtype),
        RepresentationCodec(model.scorer.representation_size, options.cache_dtype),
        memory_bytes=options.cache_memory_bytes,
        redis=redis,
        ttl_s=options.cache_ttl_s,
        metrics=metrics or Metrics(),
    )


def add_prepared(
    engine: Engine,
    name: str,
    prepared: PreparedScorer,
    encoder: TextEncoder,
    *,
    options: ScorerOptions,
    cache: RepresentationCache | None,
) -> AnyTextScorer:
    """Adds the text scorer of a scorer on the engine's device. cache: for representations; may outlive the engine."""
    tokenizer = RequestTokenizer(
        encoder,
        cache_bytes=options.token_cache_bytes,
        num_threads=options.tokenizer_threads or max(1, (os.cpu_count() or 1) // 2),
        metrics=engine.metrics,
    )
    scorer: AnyTextScorer
    taken = {other.name for other in engine.text_scorers}
    name = f"{name} {len(taken)}" if name in taken else name  # the same in another dtype
    if cache is None:
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, TokenIdSource(tokenizer, engine.queue))
    else:
        lane = EncodeLane(f"{name} encode", prepared, cache.codec)
        source = RepresentationSource(tokenizer, engine.queue, cache=cache, codec=cache.codec, lane=lane)
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, source)
    engine.text_scorers.append(scorer)
    return scorer
