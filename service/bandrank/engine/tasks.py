"""Work for the scoring thread: the candidates of a request, and the slice of them that a batch takes."""

from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from bandrank.engine.tickets import Ticket
from bandrank.models.arriving import Arriving
from bandrank.models.ids import Ids

Payload = bytes  # a representation as the codec writes it


class Run(Protocol):
    """Candidates that can be sliced."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...


Candidates = TypeVar("Candidates", bound=Run)  # in the form that a lane takes: RaggedIds or list[Payload]
Result = TypeVar("Result")  # the result of a candidate: a score or a Payload
Outcome: TypeAlias = Sequence[Result] | Exception  # of a slice of a task
Outcomes: TypeAlias = Arriving[tuple[int, Outcome[Result]], list[Outcome[Result]]]  # of the slices of a batch


@dataclass(eq=False)
class Task(Generic[Candidates, Result]):
    """Candidates that wait for a result each: a score for a query, or a representation.

    lane: the kind of work; tasks of one lane share batches.  query: token ids; empty if candidates are only encoded.
    rows: how many rows each candidate takes.  arrived, first_taken: monotonic seconds.  ticket: its request's.
    future: the results in the order of the candidates; cancelling it abandons the task.
    num_taken: how many candidates batches have taken, in order.  done_so_far: the leading candidates' results, since
    batches end in order; none is added once the task is settled.
    """

    lane: "Lane[Candidates, Result]"
    query: Ids
    candidates: Candidates
    rows: Sequence[float]
    arrived: float
    ticket: Ticket
    future: Future[list[Result]] = field(default_factory=Future)
    first_taken: float | None = None
    num_taken: int = 0
    done_so_far: list[Result] = field(default_factory=list)

    @property
    def deadline(self) -> float:
        """When the request is due, in monotonic seconds."""
        return self.ticket.deadline

    @cached_property
    def total_rows(self) -> float:
        return sum(self.rows)

    @property
    def waiting_rows(self) -> float:
        """Rows of the candidates that no batch has taken yet."""
        return self.total_rows if self.num_taken == 0 else sum(self.rows[self.num_taken :])

    @property
    def cost(self) -> float:
        """All rows of the task, weighted by what a row of its lane costs."""
        return self.total_rows * self.lane.row_cost

    def add_results(self, results: Sequence[Result]) -> None:
        """Adds the results of the next candidates; the last ones complete the task.

        A settled task takes none: if it failed, results of earlier candidates are missing.
        """
        if self.future.done():
            return
        self.done_so_far.extend(results)
        if len(self.done_so_far) == len(self.candidates):
            self.finish(self.done_so_far)

    def finish(self, outcome: list[Result] | Exception) -> None:
        """Settles the future, unless it is cancelled or settled already."""
        try:
            if isinstance(outcome, Exception):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)
        except InvalidStateError:
            pass  # cancelled, or failed by an earlier part of the same task


@dataclass(frozen=True)
class TaskSlice(Generic[Candidates, Result]):
    """The candidates of a task from index `start` up to `stop`."""

    task: Task[Candidates, Result]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def candidates(self) -> Candidates:
        return self.task.candidates[self.start : self.stop]

    @property
    def rows(self) -> float:
        return sum(self.task.rows[self.start : self.stop])

    @property
    def is_last(self) -> bool:
        """Whether nothing of the task comes after it."""
        return self.stop == len(self.task.rows)


class Lane(Protocol[Candidates, Result]):
    """A kind of work of one scorer.

    name: the label under which its speed is measured.
    """

    name: str

    @property
    def row_cost(self) -> float:
        """What a row costs, relative to rows of other lanes: `Scorer.row_cost` of the lane's scorer."""

    @property
    def overlaps(self) -> bool:
        """Whether `begin` only enqueues work on a device, so that the host is free while the device computes."""

    def begin(self, slices: Sequence[TaskSlice[Candidates, Result]]) -> Outcomes[Result]:
        """Starts a batch, and gives the outcome of each slice. Early come the index of a slice and its outcome.

        If the call raises, or the batch fails, the slices that have not come early are retried in parts.
        """


# Queues and the scoring thread treat tasks of all lanes alike; lanes know the types of their candidates and results.
AnyTask: TypeAlias = Task[Any, Any]
AnySlice: TypeAlias = TaskSlice[Any, Any]
AnyLane: TypeAlias = Lane[Any, Any]
