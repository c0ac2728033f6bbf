"""Adds a loaded model to an engine as a text scorer."""

import torch

from bandrank.cpus import usable_processors
from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import fingerprint
from bandrank.engine.cache.redis_client import RedisClient
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.engine import Engine
from bandrank.engine.lanes import EncodeLane
from bandrank.engine.representation_source import RepresentationSource
from bandrank.engine.sources import TokenIdSource
from bandrank.engine.text_scorer import AnyTextScorer, TextScorer
from bandrank.engine.tokenizer import RequestTokenizer, TextLimits
from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import Capturable, PreparedScorer, prepare
from bandrank.models.texts import TextEncoder
from bandrank.settings import Settings


def add_text_scorer(engine: Engine, model: LoadedModel, dtype: torch.dtype, settings: Settings) -> AnyTextScorer:
    """Moves a model's weights to the engine's device and adds its text scorer to the engine.

    Raises BadSetting if the settings demand kernels or graphs that cannot be used.
    """
    prepared = prepare(
        model.scorer,
        device=engine.device,
        dtype=dtype,
        backend=settings.kernels,
        graphs=settings.cuda_graphs != "off",
    )
    prepared.capture_usual(engine.worker.max_batch_rows)
    if settings.kernels == "cuda" and (reason := prepared.why_no_kernels):
        raise BadSetting("kernels", f"cannot be cuda for {model.name}: {reason}")
    # Some scorers that precompute have no graphs: for them, "on" is no error.
    captured = isinstance(model.scorer, Capturable) and model.scorer.why_not_captured is None
    expected = captured or not model.scorer.precomputes
    if settings.cuda_graphs == "on" and expected and (reason := prepared.why_no_graphs()):
        raise BadSetting("cuda_graphs", f"cannot be on for {model.name}: {reason}")
    cache = representation_cache(model, settings, redis=engine.redis, metrics=engine.metrics)
    return add_prepared(engine, model.name, prepared, model.texts(), settings, cache=cache)


def representation_cache(
    model: LoadedModel, settings: Settings, *, redis: RedisClient | None, metrics: Metrics
) -> RepresentationCache | None:
    """An empty cache for a model's representations of candidates; None for a scorer that does not precompute."""
    if not model.scorer.precomputes:
        return None
    return RepresentationCache(
        fingerprint(model.scorer, model.tokenizer.to_str(), settings.cache_dtype),
        RepresentationCodec(
            model.scorer.representation_size,
            settings.cache_dtype,
            words=model.scorer.num_words,
            terms=model.scorer.num_terms,
        ),
        memory_bytes=settings.cache_memory_bytes,
        redis=redis,
        ttl_s=settings.cache_ttl_s or None,
        metrics=metrics,
    )


def add_prepared(
    engine: Engine,
    name: str,
    prepared: PreparedScorer,
    encoder: TextEncoder,
    settings: Settings,
    *,
    cache: RepresentationCache | None,
) -> AnyTextScorer:
    """Adds a text scorer around a scorer on the engine's device. cache: of representations; may outlive the engine."""
    tokenizer = RequestTokenizer(
        encoder,
        cache_bytes=settings.token_cache_bytes,
        num_threads=settings.tokenizer_threads or max(1, usable_processors() // 2),
        metrics=engine.metrics,
        limits=TextLimits(
            settings.max_query_characters, settings.max_candidate_characters, settings.max_tokenizing_characters
        ),
        others=[other.tokenizer for other in engine.text_scorers],
    )
    scorer: AnyTextScorer
    taken = {other.name for other in engine.text_scorers}
    name = f"{name} {len(taken)}" if name in taken else name  # the same model in another dtype
    if cache is None:
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, TokenIdSource(tokenizer, engine.queue))
    else:
        lane = EncodeLane(f"{name} encode", prepared, cache.codec)
        apart = prepared.scorer.embeds and prepared.scorer.encodes_queries_apart
        query_lane = EncodeLane(f"{name} encode queries", prepared, cache.codec, of_queries=True) if apart else None
        source = RepresentationSource(tokenizer, engine.queue, cache=cache, lane=lane, query_lane=query_lane)
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, source)
    engine.text_scorers.append(scorer)
    engine.metrics.cuda_kernels.labels(name).set(prepared.why_no_kernels is None)
    return scorer
