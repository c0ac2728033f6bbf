"""Explains a candidate's score: what each stage read and gave, and which words the score rests on.

The contribution of a window of words is the raw score of the candidate less that of the same text without the window.
It is measured with the scorer itself, whatever its architecture, and anybody can check it. It has limits: contributions
do not add up to the score, since words act together (of two that say the same, neither may be missed), and a text with
a gap is unlike those that the scorer was trained on.

A long text would be too much to score again and again. Its parts are scored once, each by itself, and windows are left
out of the highest-scoring part only, the excerpt: if the scorer takes the best passage, the one that gave the score.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bandrank.engine.memory import Account
from bandrank.engine.occlusion import Scope, Window, excerpts, windows
from bandrank.engine.options import Options
from bandrank.engine.policy import AUTO, make_plan
from bandrank.engine.ranking import Stage
from bandrank.engine.reports import StageReport
from bandrank.engine.served import ServedModel
from bandrank.engine.tasks import AnyLane
from bandrank.engine.tickets import Ticket
from bandrank.models.readings import Reading

# The most texts with a gap that are scored, and the most rows of them over all stages: about two seconds on two cores.
# A stage that takes more rows for the text than WHOLE_ROWS gets excerpts of about EXCERPT_TOKENS.
MAX_GAPS, MAX_ROWS = 64, 16_384
WHOLE_ROWS, EXCERPT_TOKENS = 2048, 448
FRAME_TOKENS = 4  # besides the words of an excerpt, roughly
TOKEN_BYTES = 512  # memory for a token, its part of the answer, and the answer's text


@dataclass(frozen=True)
class Excerpt:
    """The part of a long text in which words were left out, in code points, and its raw score by itself."""

    start: int
    end: int
    score: float


@dataclass(frozen=True)
class StageExplanation:
    """What a stage read of the texts, and its own raw score.

    weight: the factor of that score in the result; 0 if the stage only chose which candidates go on.
    cached: whether the candidate's representation was cached before; None for a scorer that does not precompute.
    excerpt: the excerpt whose score the stage's contributions explain; None if they explain `score`.
    """

    stage: str
    score: float
    weight: float
    cached: bool | None
    query: Reading
    candidate: Reading
    report: StageReport
    excerpt: Excerpt | None = None


@dataclass(frozen=True)
class Contribution:
    """How much lower the raw score is without the characters from `start` up to `end`, in code points; negative if it
    is higher.

    stages: the same for each stage that counts, if its excerpt, or else what it reads, has these words. Times the
    stages' weights they add up to `score`.
    """

    start: int
    end: int
    score: float
    stages: Mapping[str, float]


@dataclass(frozen=True)
class Explanation:
    """A candidate's raw score and where it comes from: the sum of the stages' scores times their weights.

    occlusion: what scoring the excerpts and the texts with a gap cost, in each stage that counts.
    """

    model: str
    strategy: str
    score: float
    stages: Sequence[StageExplanation]
    contributions: Sequence[Contribution]
    occlusion: Sequence[StageReport]

    @property
    def num_occluded(self) -> int:
        """The number of excerpts and of texts with a gap that were scored, over all stages."""
        return sum(report.num_candidates for report in self.occlusion)

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
    account: Account,
) -> Explanation:
    """Explains the score that a strategy gives to a candidate ranked alone.

    instruction: for scorers that take one.  account: the client's; holds the memory of texts and tokens.
    Raises what `ServedModel.rank` and `Account.hold` raise.
    """
    engine = model.engine
    async with engine.admitted():
        ticket = Ticket(account.client, engine.clock() + engine.request_timeout_s)
        roles = [stage.role for stage in model.stages]
        plan = make_plan(roles, strategy, num_candidates=1, budget_s=None, predict_s=lambda _: math.inf)
        stages = _weighed([model.stages[step.stage] for step in plan.steps], query, instruction, ticket)
        account.hold(TOKEN_BYTES * _most_tokens(stages, text))
        with engine.queue.admitted(ticket, _expected(stages, text)):
            explained = [await _explain_stage(each, text) for each in stages]
            occluded = await _occlude(text, stages, explained, account)
    explanation = Explanation(
        model=model.name,
        strategy=plan.strategy,
        score=sum(each.weight * each.score for each in explained),
        stages=occluded.stages,
        contributions=occluded.contributions,
        occlusion=occluded.reports,
    )
    engine.metrics.occluded_texts.inc(explanation.num_occluded)
    return explanation


@dataclass(frozen=True)
class _WeighedStage:
    """A stage of a plan, the factor of its score in the result, and what a request asks of it."""

    stage: Stage
    weight: float
    query: str
    instruction: str
    ticket: Ticket

    @property
    def name(self) -> str:
        return self.stage.role.name

    async def score(self, texts: Sequence[str], *, keep: bool) -> tuple[list[float], StageReport]:
        """`TextScorer.score`."""
        options = Options(instruction=self.instruction, keep=keep)
        return await self.stage.scorer.score(self.name, self.query, texts, ticket=self.ticket, options=options)

    def expected(self, text: str, *, keep: bool) -> dict[AnyLane, float]:
        """Expected rows by lane of one text, judging by its length."""
        return self.stage.scorer.expected(self.query, [text], Options(keep=keep))


def _weighed(stages: Sequence[Stage], query: str, instruction: str, ticket: Ticket) -> list[_WeighedStage]:
    """The stages of a plan with their weights: 1 for the last, and the factors with which it adds earlier scores."""
    weight = 1.0
    weighed = []
    for stage in reversed(stages):
        weighed.append(_WeighedStage(stage, weight, query, instruction, ticket))
        weight *= stage.role.weight or 0.0
    return weighed[::-1]


async def _explain_stage(weighed: _WeighedStage, text: str) -> StageExplanation:
    (score,), report = await weighed.score([text], keep=True)
    scorer, instruction = weighed.stage.scorer, weighed.instruction
    readings = await scorer.read(weighed.query, text, ticket=weighed.ticket, instruction=instruction)
    cached = report.cache_hits > 0 if report.cache_hits + report.cache_misses else None
    return StageExplanation(weighed.name, score, weighed.weight, cached, *readings, report)


@dataclass(frozen=True)
class _Occluded:
    """The stages with the excerpts of a long text, the contribution of each window of words, and what these cost."""

    stages: Sequence[StageExplanation]
    contributions: Sequence[Contribution]
    reports: Sequence[StageReport]


async def _occlude(
    text: str, stages: Sequence[_WeighedStage], explained: Sequence[StageExplanation], account: Account
) -> _Occluded:
    """Scores the text without each window of words, in every stage that counts and reads these words."""
    reports: list[StageReport] = []
    scopes: dict[str, Scope] = {}
    with_excerpts = list(explained)
    for index, (weighed, each) in enumerate(zip(stages, explained, strict=True)):
        if weighed.weight:
            scopes[each.stage], excerpt, report = await _choose_scope(weighed, each, text)
            with_excerpts[index] = replace(each, excerpt=excerpt)
            reports += [report] if report is not None else []
    text = text[: max(scope.end for scope in scopes.values())]
    gaps = windows(text, list(scopes.values()), max_windows=MAX_GAPS, max_rows=MAX_ROWS)
    losses: dict[Window, dict[str, float]] = {gap: {} for gap in gaps}
    for weighed, each in zip(stages, with_excerpts, strict=True):
        if (scope := scopes.get(each.stage)) is None or not (within := [gap for gap in gaps if gap in scope]):
            continue
        account.hold(len(within) * sys.getsizeof(scope.of(text)))
        scores, report = await weighed.score([scope.without(text, gap) for gap in within], keep=False)
        reports.append(report)
        whole = each.score if each.excerpt is None else each.excerpt.score
        for gap, score in zip(within, scores, strict=True):
            losses[gap][each.stage] = whole - score
    weights = {each.stage: each.weight for each in explained}
    contributions = [
        Contribution(*gap, sum(weights[stage] * loss for stage, loss in of_stages.items()), of_stages)
        for gap, of_stages in losses.items()
    ]
    return _Occluded(with_excerpts, contributions, reports)


async def _choose_scope(
    weighed: _WeighedStage, explained: StageExplanation, text: str
) -> tuple[Scope, Excerpt | None, StageReport | None]:
    """The scope in which to leave words out for a stage, with the excerpt and the report of scoring the parts, if any.

    The scope is all that the stage read or, if that is long, the part with the highest score, the first of equals.
    """
    tokens, end = explained.candidate.tokens, explained.candidate.read_to
    rows = partial(weighed.stage.scorer.rows, len(explained.query.tokens))
    parts = excerpts(text[:end], math.ceil(len(tokens) / EXCERPT_TOKENS)) if rows(len(tokens)) > WHOLE_ROWS else []
    if not parts:  # such as white space, which may be many tokens
        return Scope(0, end, rows(len(tokens))), None, None
    scores, report = await weighed.score([text[start:stop] for start, stop in parts], keep=False)
    best = max(range(len(parts)), key=scores.__getitem__)
    start, stop = parts[best]
    inside = sum(token.start is not None and start <= token.start < stop for token in tokens)
    return Scope(start, stop, rows(inside + FRAME_TOKENS)), Excerpt(start, stop, scores[best]), report


def _most_tokens(stages: Sequence[_WeighedStage], text: str) -> int:
    """The most tokens that the readings can have, if no character is more than two."""
    most = 0
    for each in stages:
        scorer = each.stage.scorer.prepared.scorer
        for read, template in ((each.query, scorer.query_template), (text, scorer.candidate_template)):
            characters = len(read) + sum(map(len, template.wording.around(each.instruction)))
            frame = len(template.prefix) + len(template.suffix) + 2  # and [CLS], which some put before it
            most += min(2 * characters + frame, template.max_tokens)
    return most


def _expected(stages: Sequence[_WeighedStage], text: str) -> dict[AnyLane, float]:
    """Expected rows by lane of the text, its excerpts and the texts with a gap, judging by its length."""
    once = [sum(each.expected(text, keep=False).values()) if each.weight else 0.0 for each in stages]
    looked_at = [rows if rows <= WHOLE_ROWS else EXCERPT_TOKENS for rows in once]
    num_gaps = max(1.0, min(MAX_GAPS, MAX_ROWS / sum(looked_at), (len(text) + 1) // 2))
    expected: dict[AnyLane, float] = {}
    for each, whole, part in zip(stages, once, looked_at, strict=True):
        more = num_gaps * part + (whole if whole > WHOLE_ROWS else 0.0)
        for lane, rows in each.expected(text, keep=True).items():
            expected[lane] = expected.get(lane, 0.0) + rows + more
    return expected
