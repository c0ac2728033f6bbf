"""What an answer says about its cost, and about what was cut."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, Field

from bandrank.api.dialects.dialect import Exchange
from bandrank.engine.ranking import Ranking

CUT_HEADERS = {
    "truncated_query_tokens": "X-Truncated-Query-Tokens",
    "truncated_tokens": "X-Truncated-Tokens",
    "truncated_candidates": "X-Truncated-Candidates",
}
CUTS_IN_200: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            name: {"description": "As in `meta` of /rerank; absent if nothing was cut.", "schema": {"type": "integer"}}
            for name in CUT_HEADERS.values()
        }
    }
}


class Usage(BaseModel):
    """How many token ids were read, cached or not: in each stage the query once, and every candidate that it scored.

    Both fields have the same number.
    """

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, num_tokens: int) -> Self:
        """That many token ids, under both names."""
        return cls(prompt_tokens=num_tokens, total_tokens=num_tokens)


class TimingsMs(BaseModel):
    """Milliseconds that each step took, added up over all stages.

    tokenize: texts into token ids. cache: looking representations up. encode: computing those that were not cached.
    queue: waiting to be scored. score: scoring. total: the whole request, from when its body began to arrive.
    """

    tokenize: float
    cache: float
    encode: float
    queue: float
    score: float
    total: float


class StageMeta(BaseModel):
    """What a stage did.

    stage: its name. candidates: how many it scored. cache_hits, cache_misses: how many representations were cached, and
    how many were not; both 0 if its scorer does not precompute. ms: milliseconds that it took.
    """

    stage: str
    candidates: int
    cache_hits: int
    cache_misses: int
    ms: float


class Meta(BaseModel):
    """What the answer cost, and what was cut.

    strategy: the one that was used. bounded: whether budget and load could cut later stages short; the first stage
    always scores every candidate. degraded: whether a later stage scored fewer candidates than planned.
    truncated_query_tokens: word pieces cut from the query. truncated_tokens: from all texts. truncated_candidates: how
    many candidates were cut. Each is the number of the stage that cut most. first_stage_weight: the weight of the
    candidates' own scores; absent if they were not mixed in. pooled: whether scores are of the pooled form; absent if
    not. warnings: what the request asked for and did not get;
    absent if there is nothing.
    """

    timings_ms: TimingsMs
    strategy: str
    stages: list[StageMeta]
    bounded: bool
    degraded: bool
    truncated_query_tokens: int
    truncated_tokens: int
    truncated_candidates: int
    score: str = Field(description="sigmoid: relevance_score is between 0 and 1; raw: the scorer's own scale.")
    first_stage_weight: float | None = None
    pooled: bool | None = None
    warnings: list[str] | None = None


def cuts_of(ranking: Ranking) -> dict[str, int]:
    """The fields of Meta that say what was cut, of all queries."""
    by_stage: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in ranking.reports:
        by_stage[report.stage].update(
            truncated_query_tokens=report.truncated_query_tokens,
            truncated_tokens=report.truncated_tokens,
            truncated_candidates=sum(cut > 0 for cut in report.truncated_candidate_tokens),
        )
    return {name: max(cuts[name] for cuts in by_stage.values()) for name in CUT_HEADERS}


def cut_headers(cuts: Mapping[str, int]) -> dict[str, str]:
    """Such counts as headers, for answers without a field for them; empty if nothing was cut."""
    return {CUT_HEADERS[name]: str(count) for name, count in cuts.items() if count}


def meta_of(exchange: Exchange[Any]) -> Meta:
    """The cost of an exchange."""
    ranking = exchange.answer.ranking
    return Meta(
        timings_ms=timings_of(exchange),
        strategy=ranking.strategy,
        stages=[
            StageMeta(
                stage=report.stage,
                candidates=report.num_candidates,
                cache_hits=report.cache_hits,
                cache_misses=report.cache_misses,
                ms=_ms(report.total_s),
            )
            for report in ranking.reports
        ],
        bounded=ranking.bounded,
        degraded=ranking.degraded,
        score="raw" if exchange.call.raw_scores else "sigmoid",
        first_stage_weight=exchange.answer.first_stage_weight or None,
        pooled=ranking.pooled or None,
        warnings=exchange.warnings or None,
        **cuts_of(ranking),
    )


def timings_of(exchange: Exchange[Any]) -> TimingsMs:
    """The times of an exchange."""
    reports = exchange.answer.ranking.reports
    names = [name for name in TimingsMs.model_fields if name != "total"]
    steps = {name: _ms(sum(report.seconds(name) for report in reports)) for name in names}
    return TimingsMs(**steps, total=_ms(exchange.total_s))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
