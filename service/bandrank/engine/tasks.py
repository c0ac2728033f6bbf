"""What waits for the scoring thread: one request's candidates, and the slice of them that a batch takes."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

TokenIds = list[int]
Results = list[Any] | Exception  # of a slice: one for each candidate, or why there are none


@dataclass(eq=False)
class Task:
    """Candidates on their way to a result each: a score for a query, or a representation.

    lane: the kind of work; tasks of one lane share batches.  query: token ids; none if candidates are only encoded.
    candidates: token ids, or payloads of representations, as the lane takes them.  rows: per candidate, what it costs
    the scorer.  deadline, arrived, first_taken: monotonic seconds.  future: the results in the order of the candidates.
    Cancelling it gives the task up. num_taken counts candidates that batches have taken; they are taken in order.
    """

    lane: "Lane"
    query: TokenIds
    candidates: Sequence[Any]
    rows: Sequence[float]
    arrived: float
    deadline: float
    future: Future[list[Any]] = field(default_factory=Future)
    first_taken: float | None = None
    num_taken: int = 0
    num_done: int = 0

    def __post_init__(self) -> None:
        self._results: list[Any] = [None] * len(self.candidates)

    @cached_property
    def total_rows(self) -> float:
        return sum(self.rows)

    @property
    def done_so_far(self) -> list[Any]:
        """The results of the leading candidates: batches are worked off in order, so those done are the first."""
        return self._results[: self.num_done]

    def add_results(self, start: int, results: Sequence[Any]) -> None:
        """Results of the candidates from `start` on; the last ones complete the task."""
        self._results[start : start + len(results)] = results
        self.num_done += len(results)
        if self.num_done == len(self.candidates):
            self.finish(self._results)

    def finish(self, outcome: list[Any] | Exception) -> None:
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

    task: Task
    start: int
    stop: int

    @property
    def candidates(self) -> Sequence[Any]:
        return self.task.candidates[self.start : self.stop]

    @property
    def rows(self) -> float:
        return sum(self.task.rows[self.start : self.stop])


class Lane(Protocol):
    """A kind of work of one scorer. `name` labels its speed."""

    name: str

    @property
    def overlaps(self) -> bool:
        """Whether `begin` only enqueues work on a device, so that the host is free while the device computes."""

    def begin(self, slices: Sequence[TaskSlice]) -> Callable[[], list[Results]]:
        """Begins a batch. What is returned waits for its end, and gives the results of each slice.

        Both may raise: the batch is then retried in parts.
        """
