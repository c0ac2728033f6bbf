"""Makes a loaded model a text scorer of an engine."""

import os

import torch

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import fingerprint
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.engine import Engine
from bandrank.engine.lanes import EncodeLane
from bandrank.engine.sources import RepresentationSource, TokenIdSource
from bandrank.engine.text_scorer import AnyTextScorer, TextScorer
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import BadSetting
from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import prepare
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
    if settings.kernels == "cuda" and (reason := prepared.why_no_kernels):
        raise BadSetting("kernels", f"cannot be cuda for {model.name}: {reason}")
    # A scorer that precomputes has no graphs, and that is no reason to do without those of the other scorers.
    if settings.cuda_graphs == "on" and not model.scorer.precomputes and (reason := prepared.why_no_graphs()):
        raise BadSetting("cuda_graphs", f"cannot be on for {model.name}: {reason}")
    tokenizer = RequestTokenizer(
        model.tokenizer,
        model.scorer,
        cache_bytes=settings.token_cache_bytes,
        num_threads=settings.tokenizer_threads or max(1, (os.cpu_count() or 1) // 2),
        metrics=engine.metrics,
    )
    scorer: AnyTextScorer
    taken = {other.name for other in engine.text_scorers}
    name = f"{model.name} {len(taken)}" if model.name in taken else model.name  # the same model in another dtype
    if model.scorer.precomputes:
        codec = RepresentationCodec(model.scorer.representation_size, settings.cache_dtype)
        cache = RepresentationCache(
            fingerprint(model.scorer, model.tokenizer, settings.cache_dtype),
            codec,
            memory_bytes=settings.cache_memory_bytes,
            redis=engine.redis,
            ttl_s=settings.cache_ttl_s or None,
            metrics=engine.metrics,
        )
        lane = EncodeLane(f"{name} encode", prepared, codec)
        source = RepresentationSource(tokenizer, engine.queue, cache=cache, codec=codec, lane=lane)
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, source)
    else:
        scorer = TextScorer(name, prepared, tokenizer, engine.queue, TokenIdSource(tokenizer, engine.queue))
    engine.text_scorers.append(scorer)
    return scorer
