"""What waits to be scored: one request's candidates, and the slice of them that a batch takes."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import cached_property

TokenIds = list[int]


@dataclass(eq=False)
class ScoreTask:
    """One query with its candidates as token ids, on its way to scores.

    rows: per candidate, what it costs the scorer.  deadline, arrived, first_taken: monotonic seconds.
    future: the scores in the order of the candidates, raw, higher is better. Cancelling it gives the task up.
    num_taken counts candidates that batches have taken; they are taken in order.
    """

    query: TokenIds
    candidates: list[TokenIds]
    rows: list[int]
    arrived: float
    deadline: float
    future: Future[list[float]] = field(default_factory=Future)
    first_taken: float | None = None
    num_taken: int = 0
    num_scored: int = 0

    def __post_init__(self) -> None:
        self._scores = [0.0] * len(self.candidates)

    @cached_property
    def total_rows(self) -> int:
        return sum(self.rows)

    def add_scores(self, start: int, scores: list[float]) -> None:
        """Scores of the candidates from `start` on; the last ones complete the task."""
        self._scores[start : start + len(scores)] = scores
        self.num_scored += len(scores)
        if self.num_scored == len(self.candidates):
            self.finish(self._scores)

    def finish(self, outcome: list[float] | Exception) -> None:
        """Settles the future, unless whoever waited for it is gone."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            pass  # cancelled, or failed by an earlier part of the same task


@dataclass(frozen=True)
class TaskSlice:
    """Candidates start .. stop - 1 of a task."""

    task: ScoreTask
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return sum(self.task.rows[self.start : self.stop])
