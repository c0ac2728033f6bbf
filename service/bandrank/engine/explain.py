"""Why a candidate has its score: what each stage read and gave, and which of its words the score rests on.

The contribution of a window of words is the raw score of the candidate less that of the same text without the window.
So it asks the scorer itself, of whatever architecture, and anybody can check it. What does not hold: contributions do
not add up to the score, since words act together (of two that say the same, neither may be missed); and a text with a
gap is not one that the scorer was trained on.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bandrank.engine.clients import ITSELF
from bandrank.engine.memory import Account
from bandrank.engine.occlusion import windows, without
from bandrank.engine.policy import AUTO, make_plan
from bandrank.engine.ranking import Stage
from bandrank.engine.reports import StageReport
from bandrank.engine.served import ServedModel
from bandrank.engine.tasks import AnyLane
from bandrank.engine.tickets import Ticket
from bandrank.models.readings import Reading

# Texts with a gap that are scored, at most; fewer for long texts, so that they take a second or two on two cores.
MOST_GAPS, FEWEST_GAPS, MOST_ROWS = 64, 8, 16_384
TOKEN_BYTES = 512  # of memory: the token, its part of the answer, and the answer's text


@dataclass(frozen=True)
class StageExplanation:
    """What a stage read of the texts, its own raw score, and the factor of that score in the result: 0 if it only chose
    who goes on.

    cached: whether the candidate's representation was there before; None for a scorer that does not precompute.
    """

    stage: str
    score: float
    weight: float
    cached: bool | None
    query: Reading
    candidate: Reading
    report: StageReport


@dataclass(frozen=True)
class Contribution:
    """How much lower the raw score is without the characters from `start` up to `end`, in code points; negative where
    it is higher.

    stages: the same for each stage that counts, by itself. Times their weights they add up to `score`.
    """

    start: int
    end: int
    score: float
    stages: Mapping[str, float]


@dataclass(frozen=True)
class Explanation:
    """A candidate's raw score and where it comes from. Times their weights, the stages' scores add up to it.

    occlusion: what the texts with a gap cost, in each stage that counts.
    """

    model: str
    strategy: str
    score: float
    stages: Sequence[StageExplanation]
    contributions: Sequence[Contribution]
    occlusion: Sequence[StageReport]

    @property
    def num_tokens(self) -> int:
        """The number of token ids of all texts over all stages."""
        return sum(report.num_tokens for report in (*(stage.report for stage in self.stages), *self.occlusion))


async def explain(
    model: ServedModel,
    query: str,
    text: str,
    *,
    strategy: str = AUTO,
    instruction: str = "",
    account: Account | None = None,
) -> Explanation:
    """Explains the score that a strategy gives to a candidate that is ranked alone.

    instruction: for scorers that take one.
    account: holds what texts and tokens take.  Raises what `ServedModel.rank` and `Account.hold` raise.
    """
    engine = model.engine
    client = ITSELF if account is None else account.client
    async with engine.admitted():
        ticket = Ticket(client, engine.clock() + engine.request_timeout_s)
        roles = [stage.role for stage in model.stages]
        plan = make_plan(roles, strategy, num_candidates=1, budget_s=None, predict_s=lambda _: math.inf)
        stages = weigh([model.stages[step.stage] for step in plan.steps], instruction)
        counted = [each for each in stages if each.weight]
        most = _most_gaps(counted, query, text)
        if account is not None:
            account.hold(TOKEN_BYTES * _most_tokens(stages, query, text) + most * sys.getsizeof(text))
        with engine.queue.admitted(ticket, _expected(stages, query, text, min(most, (len(text) + 1) // 2))):
            explained = [await _explain_stage(each, query, text, ticket) for each in stages]
            bases = [each for each in explained if each.weight]
            text = text[: max(each.candidate.read_to for each in bases)]
            gaps = windows(text, most)
            left = [without(text, gap) for gap in gaps]
            runs = [await each.score(query, left, ticket, keep=False) for each in counted if left]
    engine.metrics.occluded_texts.inc(len(left))
    return Explanation(
        model=model.name,
        strategy=plan.strategy,
        score=sum(each.weight * each.score for each in explained),
        stages=explained,
        contributions=[
            _contribution(gap, bases, scores)
            for gap, *scores in zip(gaps, *(scores for scores, _ in runs), strict=True)
        ],
        occlusion=[report for _, report in runs],
    )


@dataclass(frozen=True)
class WeighedStage:
    """A stage, the factor of its score in the result, and the instruction for scorers that take one."""

    stage: Stage
    weight: float
    instruction: str = ""

    @property
    def name(self) -> str:
        return self.stage.role.name

    async def score(
        self, query: str, texts: Sequence[str], ticket: Ticket, *, keep: bool
    ) -> tuple[list[float], StageReport]:
        """`TextScorer.score`."""
        return await self.stage.scorer.score(
            self.name, query, texts, ticket=ticket, keep=keep, instruction=self.instruction
        )

    def expected(self, query: str, text: str, *, keep: bool) -> dict[AnyLane, float]:
        """Rows by lane of one text."""
        return self.stage.scorer.expected(query, [text], keep=keep)


def weigh(stages: Sequence[Stage], instruction: str = "") -> list[WeighedStage]:
    """The stages of a plan, the last of which gives the result, with what it adds of those before."""
    weight = 1.0
    weighed = []
    for stage in reversed(stages):
        weighed.append(WeighedStage(stage, weight, instruction))
        weight *= stage.role.weight or 0.0
    return weighed[::-1]


async def _explain_stage(weighed: WeighedStage, query: str, text: str, ticket: Ticket) -> StageExplanation:
    (score,), report = await weighed.score(query, [text], ticket, keep=True)
    asked, read = await weighed.stage.scorer.read(query, text, ticket=ticket, instruction=weighed.instruction)
    cached = report.cache_hits > 0 if report.cache_hits + report.cache_misses else None
    return StageExplanation(weighed.name, score, weighed.weight, cached, asked, read, report)


def _contribution(gap: tuple[int, int], bases: Sequence[StageExplanation], scores: Sequence[float]) -> Contribution:
    """What a gap costs. scores: of each stage that counts, with the gap."""
    losses = [base.score - score for base, score in zip(bases, scores, strict=True)]
    total = sum(base.weight * loss for base, loss in zip(bases, losses, strict=True))
    return Contribution(*gap, total, dict(zip((base.stage for base in bases), losses, strict=True)))


def _most_gaps(stages: Sequence[WeighedStage], query: str, text: str) -> int:
    """How many texts with a gap these stages may score, by the rows that one takes."""
    rows = sum(sum(each.expected(query, text, keep=False).values()) for each in stages)
    return max(FEWEST_GAPS, min(MOST_GAPS, int(MOST_ROWS / rows)))


def _most_tokens(stages: Sequence[WeighedStage], query: str, text: str) -> int:
    """The tokens of the readings, if a character is two at most."""
    most = 0
    for each in stages:
        scorer = each.stage.scorer.prepared.scorer
        for read, template in ((query, scorer.query_template), (text, scorer.candidate_template)):
            characters = len(read) + sum(map(len, template.wording.around(each.instruction)))
            frame = len(template.prefix) + len(template.suffix) + 2  # and [CLS], which some put before it
            most += min(2 * characters + frame, template.max_tokens)
    return most


def _expected(stages: Sequence[WeighedStage], query: str, text: str, num_gaps: int) -> dict[AnyLane, float]:
    """Rows by lane of the text and of so many texts with a gap."""
    expected: dict[AnyLane, float] = {}
    for each in stages:
        parts = [(1, each.expected(query, text, keep=True))]
        if each.weight:
            parts.append((num_gaps, each.expected(query, text, keep=False)))
        for times, rows in parts:
            for lane, count in rows.items():
                expected[lane] = expected.get(lane, 0.0) + times * count
    return expected
