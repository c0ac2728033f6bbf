"""One scorer with what it needs to score texts: its tokenizer, its cache, and its lanes in the queue."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Any, Literal

from bandrank.engine.batching import TaskQueue, deadline_exceeded
from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.representations import RepresentationCache
from bandrank.engine.lanes import EncodeLane, ScoreLane
from bandrank.engine.tasks import Task, TokenIds
from bandrank.engine.tokenizer import RequestTokenizer
from bandrank.errors import NotReady
from bandrank.models.prepared import PreparedScorer
from bandrank.models.ragged import Ragged

StageName = Literal["fast", "accurate"]

CAUTION = 1.1  # a budget is filled up to the predicted time times this


@dataclass
class StageReport:
    """What a stage did, and the seconds it spent on each step; filled in as it goes.

    candidates: how many it scored.  cache_hits + cache_misses: candidates looked up, if the scorer precomputes.
    num_tokens: token ids of the query and of each candidate, cached ones included.  truncated_*: word pieces that did
    not fit.
    """

    stage: StageName
    candidates: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    num_tokens: int = 0
    truncated_query_tokens: int = 0
    truncated_candidate_tokens: list[int] = field(default_factory=list)
    tokenize_s: float = 0.0
    cache_s: float = 0.0
    encode_s: float = 0.0
    queue_s: float = 0.0
    score_s: float = 0.0
    total_s: float = 0.0


class Stage:
    """Scores texts with one scorer; used from the event loop.

    cache: for a scorer that precomputes, and codec the form in which its representations are kept; None for others.
    """

    def __init__(
        self,
        name: StageName,
        scorer: PreparedScorer,
        tokenizer: RequestTokenizer,
        queue: TaskQueue,
        *,
        cache: RepresentationCache | None = None,
        codec: RepresentationCodec | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name: StageName = name
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.cache = cache
        self._codec = codec
        self._queue = queue
        self._clock = clock
        self._score_lane = ScoreLane(f"{name} score", scorer, codec.decode if codec else Ragged.from_token_ids)
        self._encode_lane = EncodeLane(f"{name} encode", scorer, codec) if codec else None

    async def score(
        self, query: str, texts: Sequence[str], *, deadline: float, answer_by: float = math.inf
    ) -> tuple[list[float], StageReport]:
        """Raw scores of the first candidates: of all, unless `answer_by` comes first or is predicted to.

        A text that comes twice is scored once: products over other rows of a batch may round otherwise, and the two
        would be no tie.

        deadline, answer_by: monotonic seconds.  Raises Overloaded, DeadlineExceeded, ScoringFailed, NotReady.
        """
        begun = self._clock()
        self._queue.check_open()
        report = StageReport(self.name)
        number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        async with _until(deadline - begun):
            prepare = self._token_ids if self.cache is None else self._representations
            query_ids, candidates, counts = await prepare(query, list(number), deadline, report)
        rows = self._rows(query_ids, candidates)
        num_fitting = self._num_fitting(rows, answer_by)
        scores: list[float] = []
        if num_fitting:
            task = Task(
                self._score_lane, query_ids, candidates[:num_fitting], rows[:num_fitting], self._clock(), deadline
            )
            scores = await self._await(task, answer_by)
            done = self._clock()
            taken = task.first_taken or done
            report.queue_s, report.score_s = taken - task.arrived, done - taken
        answered = list(takewhile(lambda place: place < len(scores), (number[text] for text in texts)))
        report.candidates = len(answered)
        report.num_tokens = len(query_ids) + sum(counts[place][0] for place in answered)
        report.truncated_candidate_tokens = [counts[place][1] for place in answered]
        report.total_s = self._clock() - begun
        return [scores[place] for place in answered], report

    async def precompute(self, texts: Sequence[str], *, deadline: float) -> int:
        """Fills the cache with representations of texts that it lacks; returns how many those were.

        Raises what `score` raises.
        """
        self._queue.check_open()
        report = StageReport(self.name)
        async with _until(deadline - self._clock()):
            await self._payloads(texts, deadline, report)
        return report.cache_misses

    async def stored(self) -> None:
        """Returns when everything that was computed is in Redis. Raises NotReady if some of it is not."""
        if self.cache is not None and not await self.cache.drained():
            raise NotReady("Redis did not store all representations")

    async def close(self) -> None:
        """Stores what waits to be stored, and ends the threads; the scoring thread must have ended."""
        if self.cache is not None:
            await self.cache.close()
        self.tokenizer.close()

    def predict_s(self, query: str, texts: Sequence[str]) -> float:
        """Seconds that scoring texts of these lengths will take once they are taken, at the measured speed."""
        per_character = self.tokenizer.tokens_per_character
        query_tokens = math.ceil(len(query) * per_character)
        tokens = [math.ceil(len(text) * per_character) for text in texts]
        if self._encode_lane is not None:
            return self._queue.throughput.seconds(self._encode_lane.name, sum(tokens))
        rows = sum(self.scorer.scorer.num_rows(query_tokens, count) for count in tokens)
        return self._queue.throughput.seconds(self._score_lane.name, rows)

    async def _token_ids(
        self, query: str, texts: Sequence[str], deadline: float, report: StageReport
    ) -> tuple[TokenIds, Sequence[Any], list[tuple[int, int]]]:
        del deadline  # tokenising is not waited for in a queue
        begun = self._clock()
        tokens = await self.tokenizer.tokenize(query, texts)
        report.tokenize_s = self._clock() - begun
        report.truncated_query_tokens = tokens.truncated_query_tokens
        lengths = [len(ids) for ids in tokens.candidates]
        return tokens.query, tokens.candidates, list(zip(lengths, tokens.truncated_candidate_tokens, strict=True))

    async def _representations(
        self, query: str, texts: Sequence[str], deadline: float, report: StageReport
    ) -> tuple[TokenIds, Sequence[Any], list[tuple[int, int]]]:
        assert self._codec is not None, "a cache comes with a codec. This is a bug."
        begun = self._clock()
        tokens = await self.tokenizer.tokenize(query, [])
        report.tokenize_s = self._clock() - begun
        report.truncated_query_tokens = tokens.truncated_query_tokens
        payloads = await self._payloads(texts, deadline, report)
        return tokens.query, payloads, self._codec.counts(payloads)

    async def _payloads(self, texts: Sequence[str], deadline: float, report: StageReport) -> list[bytes]:
        """The representation of each text, from the cache or computed."""
        assert self.cache is not None, "asked of a scorer that precomputes. This is a bug."
        begun = self._clock()
        keys = [digest(text) for text in texts]
        lookup = await self.cache.lookup(keys)
        looked_up = self._clock()
        missing = {
            key: text for key, text, payload in zip(keys, texts, lookup.payloads, strict=True) if payload is None
        }
        computed: dict[bytes, bytes] = {}
        if missing:
            computed = await self.cache.compute_missing(
                list(missing), lambda wanted: self._encode([missing[key] for key in wanted], deadline)
            )
        report.cache_s, report.encode_s = looked_up - begun, self._clock() - looked_up
        report.cache_hits, report.cache_misses = len(keys) - lookup.misses, lookup.misses
        return [
            computed[key] if payload is None else payload for key, payload in zip(keys, lookup.payloads, strict=True)
        ]

    async def _encode(self, texts: Sequence[str], deadline: float) -> list[bytes]:
        assert self._encode_lane is not None and self._codec is not None, "as `_payloads`. This is a bug."  # noqa: PT018
        tokens = await self.tokenizer.tokenize("", texts)
        lengths = [len(ids) for ids in tokens.candidates]
        task = Task(self._encode_lane, [], tokens.candidates, lengths, self._clock(), deadline)
        rows = await self._await(task, math.inf)
        return self._codec.with_counts(rows, lengths, tokens.truncated_candidate_tokens)

    def _rows(self, query_ids: TokenIds, candidates: Sequence[Any]) -> list[float]:
        lengths = [len(ids) for ids in candidates] if self._codec is None else self._codec.lengths(candidates)
        cost = {length: self.scorer.scorer.num_rows(len(query_ids), length) for length in set(lengths)}
        return [cost[length] for length in lengths]

    def _num_fitting(self, rows: Sequence[float], answer_by: float) -> int:
        """How many leading candidates will be scored in time, behind what waits now."""
        if math.isinf(answer_by) or not rows:
            return len(rows)
        time_left = answer_by - self._clock() - self._queue.wait_s
        throughput = self._queue.throughput
        return sum(
            CAUTION * throughput.seconds(self._score_lane.name, sofar) <= time_left for sofar in accumulate(rows)
        )

    async def _await(self, task: Task, answer_by: float) -> list[Any]:
        """The task's results once the scoring thread has them; at `answer_by` those of the leading candidates that it
        has by then.
        """
        self._queue.put(task)
        future = asyncio.wrap_future(task.future)
        reason = "cancelled"
        try:
            finished, _ = await asyncio.wait([future], timeout=min(task.deadline, answer_by) - self._clock())
            if finished:
                return future.result()
            reason = "expired"
            if answer_by <= task.deadline:
                return task.done_so_far
            raise deadline_exceeded()
        finally:
            if not task.future.done():
                self._queue.discard(task, reason)


@asynccontextmanager
async def _until(seconds: float) -> AsyncIterator[None]:
    """asyncio.timeout, told as DeadlineExceeded."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None
