"""A scorer with its tokenizer, the source of its candidates and its lane: texts in, scores out."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeAlias

from bandrank.engine.lanes import PassageLane, ScoreLane
from bandrank.engine.options import DEFAULT, Options
from bandrank.engine.passages import BestPassage
from bandrank.engine.reports import Recorder, Span, StageReport
from bandrank.engine.sources import CandidateSource, Sourced
from bandrank.engine.submit import count_fitting, submit, timeout
from bandrank.engine.task_queue import TaskQueue
from bandrank.engine.tasks import AnyLane, Candidates, Lane, Payload, Result, Task
from bandrank.engine.tickets import Ticket
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.models.ids import RaggedIds
from bandrank.models.prepared import PreparedScorer
from bandrank.models.readings import Reading
from bandrank.models.texts import Reach


@dataclass(frozen=True)
class _Scored(Generic[Candidates, Result]):
    """Results of texts, in their order.

    sourced: the distinct texts; None if `answer_by` came first.  answered: the index in `sourced` of each result.
    """

    results: list[Result]
    report: StageReport
    sourced: Sourced[Candidates] | None
    answered: Sequence[int]


class TextScorer(Generic[Candidates]):
    """Scores texts with one scorer. Used from the event loop, by any number of served models."""

    def __init__(
        self,
        name: str,
        prepared: PreparedScorer,
        tokenizer: RequestTokenizer,
        queue: TaskQueue,
        source: CandidateSource[Candidates],
    ) -> None:
        """name: unique among the scorers of an engine."""
        self.name = name
        self.prepared = prepared
        self.tokenizer = tokenizer
        self.queue = queue
        self.source = source
        self.lane = ScoreLane(f"{name} score", prepared, source.to_ragged)
        self._passage_lane = PassageLane(self.lane)

    async def score(
        self,
        stage: str,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        options: Options = DEFAULT,
    ) -> tuple[list[float], StageReport]:
        """Raw scores of the leading texts: of all texts, unless `options.answer_by` comes first or is predicted to.

        A repeated text is scored once: at another index of a batch its products may round differently, and the two
        would not tie.

        stage: the name for the report, which says whether the instruction was read.  ticket: the request's.
        Raises Overloaded, InputTooLarge, DeadlineExceeded, ScoringFailed and NotReady.
        """
        scored = await self._score(self.lane, stage, query, texts, ticket=ticket, options=options)
        return await self._pooled(scored.results, scored), scored.report

    @property
    def reads_passages(self) -> bool:
        """Whether the scorer can say which passage of a candidate gave it its score."""
        return self.prepared.reads_passages

    async def score_passages(
        self,
        stage: str,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        options: Options = DEFAULT,
    ) -> tuple[list[float], StageReport, list[BestPassage]]:
        """Like `score`, with the best passage of each scored text; the scorer must read passages."""
        scored = await self._score(self._passage_lane, stage, query, texts, ticket=ticket, options=options)
        if scored.sourced is None:
            return [], scored.report, []
        query_tokens, num_tokens = len(scored.sourced.query), scored.sourced.num_tokens
        template = self.prepared.scorer.candidate_template
        num_last = len(template.closing) + len(template.suffix)
        cut = scored.report.truncated_candidate_tokens
        best = []
        for (score, passage), index, num_cut in zip(scored.results, scored.answered, cut, strict=True):
            bounds = self.prepared.passage_bounds(query_tokens, num_tokens[index])
            whole = len(bounds) == 1 and not num_cut
            begin, end = bounds[passage]
            if num_cut:  # its last ids stand in place of pieces that are not read
                end = min(end, num_tokens[index] - num_last)
            best.append(BestPassage(stage, score, None if whole else (begin, end)))
        return await self._pooled([score for score, _ in scored.results], scored), scored.report, best

    async def _score(
        self,
        lane: Lane[Candidates, Result],
        stage: str,
        query: str,
        texts: Sequence[str],
        *,
        ticket: Ticket,
        options: Options,
    ) -> _Scored[Candidates, Result]:
        """The lane's results for the leading texts, as `score` says."""
        recorder = Recorder(self.queue.clock)
        start = self.queue.clock()
        self.queue.check_open()
        index_of = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        try:
            async with asyncio.timeout(self._left_s(options.answer_by)):
                sourced = await self.source.fetch(
                    query, list(index_of), ticket=ticket, recorder=recorder, options=options
                )
                query_exceeded = await self._query_exceeds(query, ticket, options, sourced.truncated_query_tokens)
        except TimeoutError:  # before anything could be scored
            spans, end = tuple(recorder.spans), self.queue.clock()
            return _Scored([], StageReport(stage=stage, start=start, end=end, spans=spans), None, ())
        rows = self.prepared.scorer.rows_of(len(sourced.query), sourced.lengths)
        num_fitting = count_fitting(self.queue, self.lane, rows, ticket, options.answer_by)
        results: list[Result] = []
        if num_fitting:
            task = Task(
                lane,
                sourced.query,
                sourced.candidates[:num_fitting],
                rows[:num_fitting],
                self.queue.clock(),
                ticket,
            )
            results = await submit(self.queue, task, answer_by=options.answer_by)
            end = self.queue.clock()
            taken = task.first_taken or end
            recorder.spans += [Span("queue", task.arrived, taken), Span("score", taken, end)]
        answered = list(takewhile(lambda index: index < len(results), (index_of[text] for text in texts)))
        report = StageReport(
            stage=stage,
            start=start,
            end=self.queue.clock(),
            spans=tuple(recorder.spans),
            num_candidates=len(answered),
            num_tokens=len(sourced.query) + sum(sourced.num_tokens[index] for index in answered),
            truncated_query_tokens=sourced.truncated_query_tokens,
            truncated_candidate_tokens=[sourced.truncated_tokens[index] for index in answered],
            cache_hits=sourced.cache_hits,
            cache_misses=sourced.cache_misses,
            instructed=bool(options.instruction) and self.tokenizer.takes_instructions,
            pooled=options.pooled and self.prepared.scorer.lexical_evidence is not None,
            pair_exceeded=self._exceeds(options.reach.pair, sourced),
            query_exceeded=query_exceeded,
        )
        return _Scored([results[index] for index in answered], report, sourced, answered)

    async def _pooled(self, scores: list[float], scored: _Scored[Candidates, Any]) -> list[float]:
        """The scores of texts, in the pooled form of lexical evidence if the report says so."""
        if not scored.report.pooled or not scores:
            return scores
        lexical = self.prepared.scorer.lexical_evidence
        assert lexical is not None, "the report says so. This is a bug."
        assert scored.sourced is not None, "it has scores. This is a bug."
        pool = scored.sourced.candidates[: max(scored.answered) + 1]  # distinct texts are in the order of the request
        query, to_ragged = scored.sourced.query, self.source.to_ragged
        change = await asyncio.to_thread(lambda: lexical.pooled_change(query, to_ragged([pool])).tolist())
        return [score + change[index] for score, index in zip(scores, scored.answered, strict=True)]

    def _exceeds(self, most: int | None, sourced: Sourced[Candidates]) -> bool:
        """Whether a candidate and the query together have more than `most` token ids."""
        if most is None:
            return False
        longest = max(sourced.num_tokens, default=0)
        return self.prepared.scorer.pair_tokens(len(sourced.query), longest) > most

    async def _query_exceeds(self, query: str, ticket: Ticket, options: Options, num_cut: int) -> bool:
        """Whether more of a query's word pieces are read than the request allows.  num_cut: those that are not read."""
        if options.query_tokens is None:
            return False
        async with timeout(ticket.deadline - self.queue.clock()):
            return await self.tokenizer.num_query_pieces(query, client=ticket.client) - num_cut > options.query_tokens

    def predict_s(self, query: str, texts: Sequence[str], options: Options = DEFAULT) -> float:
        """Seconds that scoring texts of these lengths will take once a batch takes them, at the measured speed.

        If the scorer precomputes: the seconds to encode all of them, which is most of its work.
        """
        if self.source.encode_lane is not None:
            encoded = self._estimate_encoded(texts, options.reach)
            return self.queue.throughput.seconds(self.source.encode_lane.name, encoded)
        return self.queue.throughput.seconds(self.lane.name, self.estimate_rows(query, texts, options))

    def expected(self, query: str, texts: Sequence[str], options: Options = DEFAULT) -> dict[AnyLane, float]:
        """Rows by lane that texts of these lengths are likely to need. Scoring what is precomputed is not counted."""
        if self.source.encode_lane is None:
            return {self.lane: self.estimate_rows(query, texts, options)}
        miss_rate = self.source.miss_rate if options.keep else 1.0
        return {self.source.encode_lane: miss_rate * self._estimate_encoded(texts, options.reach)}

    def expected_of_query(self, query: str) -> dict[AnyLane, float]:
        """Rows by lane that a query of this length is likely to need, where `expected` does not count it."""
        if self.source.encode_lane is None:
            return {}
        return {self.lane: self.prepared.scorer.query_rows(self._estimate_query_tokens(query))}

    def rows(self, query_tokens: int, candidate_tokens: int) -> float:
        """Rows of an uncached candidate. Scoring what is precomputed is not counted."""
        if self.source.encode_lane is not None:
            return candidate_tokens
        return self.prepared.scorer.num_rows(query_tokens, candidate_tokens)

    async def read(
        self, query: str, candidate: str, *, ticket: Ticket, instruction: str = ""
    ) -> tuple[Reading, Reading]:
        """What the scorer reads of a query and a candidate. Raises Overloaded, InputTooLarge and DeadlineExceeded."""
        async with timeout(ticket.deadline - self.queue.clock()):
            return await self.tokenizer.read(query, candidate, client=ticket.client, instruction=instruction)

    def estimate_rows(self, query: str, texts: Sequence[str], options: Options) -> float:
        """Rows of texts of these lengths, at the recent number of tokens per character."""
        query_tokens = self._estimate_query_tokens(query)
        most = self.tokenizer.candidate_limit(query_tokens, options.reach)
        return sum(self.prepared.scorer.rows_of(query_tokens, self.tokenizer.estimate_tokens(texts, most)))

    def _estimate_query_tokens(self, query: str) -> int:
        template = self.prepared.scorer.query_template
        [query_tokens] = self.tokenizer.estimate_tokens([query], template.max_tokens)
        return min(query_tokens + template.num_added, template.max_tokens)

    def _estimate_encoded(self, texts: Sequence[str], reach: Reach) -> int:
        """Token ids of candidates of these lengths that are encoded without a query."""
        return sum(self.tokenizer.estimate_tokens(texts, self.tokenizer.candidate_limit(0, reach)))

    async def close(self) -> None:
        """Writes what is queued for Redis and ends the tokenizer's threads; the scoring thread must have ended."""
        await self.source.close()
        self.tokenizer.close()

    def _left_s(self, answer_by: float) -> float | None:
        return None if math.isinf(answer_by) else answer_by - self.queue.clock()


AnyTextScorer: TypeAlias = TextScorer[RaggedIds] | TextScorer[list[Payload]]
