"""A served model: a sequence of stages over one engine."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch

from bandrank.engine.clients import ITSELF, Client
from bandrank.engine.engine import Engine
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.passages import BestPassage, Passage
from bandrank.engine.policy import AUTO, Plan, make_plan, strategies
from bandrank.engine.ranking import Ranking, Stage, run_plan
from bandrank.engine.reports import StageReport, covered_s
from bandrank.engine.submit import CAUTION, timeout
from bandrank.engine.tasks import AnyLane
from bandrank.engine.tickets import Ticket
from bandrank.errors import UnknownModel
from bandrank.metrics import Metrics

# The part of a request's time that a stage which may be cut short can use; the rest is for sending the answer.
CUT_AT = 0.98
QUERIES_AT_ONCE = 32  # of one request, side by side: as many as share a batch
PLANNED_AT_ONCE = 64  # queries of one request, before the event loop gets a turn
NO_NAMES = ("", "default", "default/not-specified")  # sent by clients that name no model; the last is infinity's
SELF_TEST_TEXTS = ["It is.", "", "A longer candidate. " * 40]


@dataclass(frozen=True)
class ServedModel:
    """Ranks texts in stages, the cheapest first.

    name, aliases: the names that requests may use.  dtype: the dtype in which its scorers compute.
    first_stage_weight: the weight of the scores that candidates come with, unless a request gives one.
    pooled: as in Options, unless a request says.
    """

    name: str
    stages: tuple[Stage, ...]
    engine: Engine
    dtype: torch.dtype
    aliases: frozenset[str] = frozenset()
    first_stage_weight: float = 0.0
    pooled: bool = False

    @property
    def strategies(self) -> list[str]:
        """The strategies that requests may name."""
        return strategies([stage.role for stage in self.stages])

    async def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        client: Client = ITSELF,
        strategy: str | None = AUTO,
        budget_s: float | None = None,
        options: Options = DEFAULT,
    ) -> Ranking:
        """Ranks candidate texts for one query, as `rank_each` does."""
        asked = [(query, texts)]
        [ranking] = await self.rank_each(asked, client=client, strategy=strategy, budget_s=budget_s, options=options)
        return ranking

    async def rank_each(
        self,
        asked: Sequence[tuple[str, Sequence[str]]],
        *,
        client: Client = ITSELF,
        strategy: str | None = AUTO,
        budget_s: float | None = None,
        options: Options = DEFAULT,
    ) -> list[Ranking]:
        """Ranks candidate texts for each of several queries.

        The queries are one request: admitted together, in one turn and with one deadline, so that none of them has to
        be admitted behind the others. Cancelling the call frees its room in the queue. The metrics of answered requests
        leave out what is ranked for a background client.
        budget_s: seconds within which the answer is due; a bounded plan leaves as many candidates to its later stages
        as fit.  options: their `answer_by` is set here.
        Raises UnknownStrategy, InputTooLarge, Overloaded, DeadlineExceeded, ScoringFailed and NotReady.
        """
        async with self.engine.admitted():
            rankings = await self._rank(asked, client, strategy, budget_s, options=options)
        if not client.background:
            observe(rankings, self.engine.metrics)
        return rankings

    async def locate(
        self, best: Mapping[int, BestPassage], texts: Mapping[int, str], *, client: Client
    ) -> dict[int, Passage]:
        """Finds the characters of best passages, by candidate index; the caller keeps the engine admitted.

        best: some or all of a ranking's.  texts: the ranked texts.  Raises what `RequestTokenizer.places` raises.
        """
        spans = {index: (0, len(texts[index])) for index, passage in best.items() if passage.tokens is None}
        for stage in self.stages:
            tokens = {
                index: passage.tokens
                for index, passage in best.items()
                if passage.tokens is not None and passage.stage == stage.role.name
            }
            places = await stage.scorer.tokenizer.places(
                [texts[index] for index in tokens], [*tokens.values()], client=client
            )
            spans |= zip(tokens, places, strict=True)
        return {index: Passage(*spans[index], passage.score) for index, passage in best.items()}

    async def self_test(self) -> None:
        """Scores a request with every stage, without counting it in the metrics. Raises what `rank` raises.

        It bypasses the caches: a cached representation would say nothing about the encoder.
        """
        asked = [("is the service able to score?", SELF_TEST_TEXTS)]
        for stage in self.stages:
            await self._rank(asked, ITSELF, stage.role.name, None, options=Options(keep=False))

    async def _rank(
        self,
        asked: Sequence[tuple[str, Sequence[str]]],
        client: Client,
        strategy: str | None,
        budget_s: float | None,
        *,
        options: Options,
    ) -> list[Ranking]:
        queue, start, timeout_s = self.engine.queue, self.engine.clock(), self.engine.request_timeout_s
        ticket = Ticket(client, start + timeout_s, priority=options.priority)
        roles = [stage.role for stage in self.stages]
        plans: list[Plan] = []
        expected: defaultdict[AnyLane, float] = defaultdict(float)
        for number, (query, texts) in enumerate(asked):
            if number % PLANNED_AT_ONCE == PLANNED_AT_ONCE - 1:
                await asyncio.sleep(0)
            plan = make_plan(
                roles,
                strategy,
                num_candidates=len(texts),
                budget_s=budget_s,
                predict_s=partial(
                    self._predict_s, query=query, texts=texts, ticket=ticket, options=options, expected=expected
                ),
            )
            plans.append(plan)
            ticket.num_scorings += 1 if plan.bounded else len(plan.steps)
            for lane, rows in self._expected(plan, query, texts, options).items():
                expected[lane] += rows
        until = start + min(CUT_AT * timeout_s, math.inf if budget_s is None else budget_s)
        options = replace(options, answer_by=until)
        turns = asyncio.Semaphore(QUERIES_AT_ONCE)

        async def run(plan: Plan, query: str, texts: Sequence[str]) -> Ranking:
            async with turns:
                return await run_plan(plan, self.stages, query, texts, ticket=ticket, options=options)

        with queue.admitted(ticket, expected):
            if len(asked) == 1:
                return [await run(plans[0], *asked[0])]
            running = [asyncio.ensure_future(run(plan, *each)) for plan, each in zip(plans, asked, strict=True)]
            try:
                async with timeout(timeout_s):
                    return await asyncio.gather(*running)
            finally:
                for each in running:  # after a failure the others are of no use
                    each.cancel()

    def _predict_s(
        self,
        index: int,
        *,
        query: str,
        texts: Sequence[str],
        ticket: Ticket,
        options: Options,
        expected: Mapping[AnyLane, float],
    ) -> float:
        """Seconds until a stage will have scored texts, after the work ahead of the request and the work that the
        request is expected to need so far.
        """
        queue, scorer = self.engine.queue, self.stages[index].scorer
        cost = scorer.estimate_rows(query, texts, options) * scorer.lane.row_cost
        own_s = queue.throughput.total({lane.name: rows for lane, rows in expected.items()})
        return queue.wait_s(ticket, cost) + own_s + CAUTION * scorer.predict_s(query, texts, options)

    def _expected(self, plan: Plan, query: str, texts: Sequence[str], options: Options) -> dict[AnyLane, float]:
        """Expected rows by lane of the steps without which the request cannot be answered."""
        steps = plan.steps[:1] if plan.bounded else plan.steps
        expected: dict[AnyLane, float] = {}
        for step in steps:
            scorer = self.stages[step.stage].scorer
            expected |= scorer.expected(query, texts[: step.depth], options) | scorer.expected_of_query(query)
        return expected


def observe(rankings: Sequence[Ranking], metrics: Metrics) -> None:
    """Adds the reports of an answered request to the metrics. rankings: one for each of its queries."""
    by_stage: defaultdict[str, list[StageReport]] = defaultdict(list)
    for ranking in rankings:
        for report in ranking.reports:
            by_stage[report.stage].append(report)
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for stage, reports in by_stage.items():
        for span in chain.from_iterable(report.spans for report in reports):
            spans[span.name].append((span.start, span.end))
        metrics.stages.labels(stage).inc()
        metrics.stage_candidates.labels(stage).inc(sum(report.num_candidates for report in reports))
        metrics.stage_seconds.labels(stage).observe(covered_s([(report.start, report.end) for report in reports]))
        metrics.truncated_tokens.inc(sum(report.truncated_tokens for report in reports))
        metrics.cache_candidates.labels("hit").inc(sum(report.cache_hits for report in reports))
        metrics.cache_candidates.labels("miss").inc(sum(report.cache_misses for report in reports))
    for step, seconds in metrics.step_seconds.items():
        seconds.observe(covered_s(spans[step]))
    metrics.candidates.inc(sum(len(ranking.candidates) for ranking in rankings))
    metrics.tokens.inc(sum(ranking.num_tokens for ranking in rankings))
    metrics.degraded.inc(any(ranking.degraded for ranking in rankings))


class Models:
    """The served models, over one engine; the first one is the default."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.default = models[0]
        self.by_name = {model.name: model for model in models}
        self.engine = self.default.engine
        # Names take precedence over aliases, and the aliases of earlier models over those of later ones.
        aliases = {alias: model for model in reversed(models) for alias in model.aliases}
        self._by_alias = dict.fromkeys(NO_NAMES, self.default) | aliases | self.by_name

    async def close(self) -> None:
        """Admits no more requests; returns when those admitted are answered and what they computed is stored."""
        await self.engine.close()

    def find(self, name: str | None, *, or_default: bool = False) -> ServedModel:
        """The model with a name or an alias; the default model for None and NO_NAMES.

        or_default: whether an unknown name gives the default model too.
        Raises UnknownModel, whose message lists the served names.
        """
        name = name or ""
        if name in self._by_alias:
            return self._by_alias[name]
        if or_default:
            return self.default
        raise UnknownModel(f"model {name[:100]!r} is not served here; models: {', '.join(self.by_name)}")
