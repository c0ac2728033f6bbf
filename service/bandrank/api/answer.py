"""From the engine's ranking to the response of POST /rerank."""

import uuid

import numpy as np
import numpy.typing as npt

from bandrank.api.resolve import Resolved
from bandrank.api.schemas import (
    DocumentOut,
    Meta,
    RerankRequest,
    RerankResponse,
    Result,
    StageMeta,
    TimingsMs,
    Usage,
)
from bandrank.engine.reranker import Ranking

Float32s = npt.NDArray[np.float32]


def answer(
    wanted: RerankRequest,
    resolved: Resolved,
    ranking: Ranking,
    *,
    model: str,
    total_s: float,
) -> RerankResponse:
    """The response to `wanted`; the ranking's indices are places among the resolved texts."""
    scores = np.array([candidate.score for candidate in ranking.candidates], np.float32)
    if not wanted.raw_scores:
        scores = sigmoid(scores)
    items = wanted.items
    results = []
    for candidate, score in zip(ranking.candidates[: wanted.top_n or None], scores.tolist(), strict=False):
        place = resolved.places[candidate.index]
        item = items[place]
        name = None if isinstance(item, str) else item.id
        document = DocumentOut(resolved.texts[candidate.index]) if wanted.return_documents else None
        results.append(Result(place, score, candidate.stage, name, document))
    return RerankResponse(
        id=f"rerank-{uuid.uuid4().hex}",
        model=model,
        results=results,
        unresolved=resolved.unresolved or None,
        usage=Usage(prompt_tokens=ranking.num_tokens, total_tokens=ranking.num_tokens),
        meta=_meta(ranking, total_s, score="raw" if wanted.raw_scores else "sigmoid"),
    )


def sigmoid(scores: Float32s) -> Float32s:
    """1 / (1 + exp(-x)) in float32, without overflow on either side."""
    small = np.exp(-np.abs(scores))
    return np.where(scores >= 0, 1 / (1 + small), small / (1 + small))


def _meta(ranking: Ranking, total_s: float, *, score: str) -> Meta:
    stages = ranking.stages
    cut_queries = max(stage.truncated_query_tokens for stage in stages)
    return Meta(
        timings_ms=TimingsMs(
            tokenize=_ms(sum(stage.tokenize_s for stage in stages)),
            cache=_ms(sum(stage.cache_s for stage in stages)),
            encode=_ms(sum(stage.encode_s for stage in stages)),
            queue=_ms(sum(stage.queue_s for stage in stages)),
            score=_ms(sum(stage.score_s for stage in stages)),
            total=_ms(total_s),
        ),
        strategy=ranking.strategy,
        stages=[
            StageMeta(
                stage=stage.stage,
                candidates=stage.candidates,
                cache_hits=stage.cache_hits,
                cache_misses=stage.cache_misses,
                ms=_ms(stage.total_s),
            )
            for stage in stages
        ],
        degraded=ranking.degraded,
        truncated_query_tokens=cut_queries,
        truncated_tokens=max(stage.truncated_query_tokens + sum(stage.truncated_candidate_tokens) for stage in stages),
        truncated_candidates=max(sum(cut > 0 for cut in stage.truncated_candidate_tokens) for stage in stages),
        score=score,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
