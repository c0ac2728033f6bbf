"""Parts of a batch side by side, each on a thread that computes alone: a core is a worker.

In a product over all cores, each waits for the slowest; with another process on one of them, all products wait. Workers
take parts of the batch, one after the other, and wait for each other only at its end.
"""

import functools
import heapq
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from bandrank.models.batch import ScoreBatch
from bandrank.models.processors import Processors
from bandrank_kernels.arrays import Ints, offsets

Part = TypeVar("Part")
Result = TypeVar("Result")
# A small batch gives each worker one part, unless it had fewer rows than these.
MIN_PART_ROWS = 96
# If a worker would have more than this many times its share of the rows, the threads share each layer instead, and wait
# for each other there.
MAX_SHARES = 1.25


class Grain(NamedTuple):
    """How finely batches are cut, in rows.

    A batch of `large` rows for each worker is cut into more parts than workers, so that one whose core is busy with
    something else takes fewer: half of what is left is shared out at a time (guided self-scheduling, Polychronopoulos
    and Kuck 1987), in parts of at least `least` rows but for the last, for which the Python in between does not count.
    """

    large: int
    least: int


FINE = Grain(768, 256)  # where one call computes a layer
COARSE = Grain(2048, 1024)  # where torch computes one operation after the other


class Workers:
    """Threads, each of which computes with one thread of torch's."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._processors = Processors()
        self._room = threading.Event()  # set once a part that is queued now would begin soon
        self._room.set()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="bandrank-worker")
        self._together = ThreadPoolExecutor(1, thread_name_prefix="bandrank-together")
        started = threading.Barrier(count)

        def compute_alone() -> None:
            torch.get_num_threads()  # takes over the number of the process, which it would do later otherwise
            torch.set_num_threads(1)
            started.wait()

        for future in [self._pool.submit(compute_alone) for _ in range(count)]:
            future.result()
        torch.set_num_threads(count)  # of this thread, and of threads that start later

    def run(self, compute: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """The results of all parts, in their order; an error of one is raised when all have ended."""
        if len(parts) < 2 or self.count < 2:
            return [compute(part) for part in parts]
        return self.begin(compute, parts)()

    def begin(self, compute: Callable[[Part], Result], parts: Sequence[Part]) -> Callable[[], list[Result]]:
        """Queues the parts behind those of earlier calls. The returned function waits for the results, as `run`."""
        room = threading.Event()

        def compute_apart(number: int, part: Part) -> Result:
            if number == len(parts) - 1:
                room.set()
            with self._processors.apart(), torch.inference_mode():
                return compute(part)

        futures = [_submit(self._pool, compute_apart, number, part) for number, part in enumerate(parts)]
        self._room = room if parts else self._room

        def results() -> list[Result]:
            errors = [error for future in futures if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            return [future.result() for future in futures]

        return results

    def begin_together(self, compute: Callable[[Part], Result], part: Part) -> Callable[[], list[Result]]:
        """Like `begin`, for a single part, each of whose layers is shared by as many threads as there are workers."""
        room = threading.Event()

        def compute_together() -> Result:
            try:
                with torch.inference_mode():
                    return compute(part)
            finally:
                room.set()

        future = _submit(self._together, compute_together)
        self._room = room
        return lambda: [future.result()]

    def wait_for_room(self) -> None:
        """Waits until the last part that was queued has begun, or has ended if the threads share it."""
        self._room.wait()


def _submit(pool: ThreadPoolExecutor, compute: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Like `pool.submit`, but computes on the calling thread once the pool takes nothing more, as the process ends."""
    try:
        return pool.submit(compute, *arguments)
    except RuntimeError:
        future: Future[Result] = Future()
        try:
            future.set_result(compute(*arguments))
        except Exception as error:  # noqa: BLE001  # raised by whoever asks for the result
            future.set_exception(error)
        return future


def split(lengths: Ints, count: int, grain: Grain = FINE) -> list[slice]:
    """Runs of sequences of about the same number of rows for `count` workers, or one run of all if a few long ones have
    most rows.

    lengths: of each sequence, in rows.
    """
    total = int(lengths.sum())
    ends = np.searchsorted(np.cumsum(lengths), _ends(total, count, grain), side="left") + 1
    runs = [slice(begin, end) for begin, end in pairwise(sorted({0, *ends.tolist(), len(lengths)}))]
    if runs and _most_rows([int(lengths[run].sum()) for run in runs], count) * count <= MAX_SHARES * total:
        return runs
    return [slice(0, len(lengths))]


def _ends(total: int, count: int, grain: Grain) -> list[float]:
    """Where all parts but the last one should end, in rows."""
    if count == 1 or total < count * grain.large:
        parts = min(count, total // MIN_PART_ROWS)
        return [total * part / parts for part in range(1, parts)]
    ends, end = [], 0.0
    while total - end > grain.least:
        end += max(grain.least, (total - end) / (2 * count))
        ends.append(end)
    return ends


def _most_rows(parts: Sequence[int], count: int) -> int:
    """The rows of the worker that has most, when each takes the next part as soon as it is free."""
    rows = [0] * count
    for part in parts:
        heapq.heapreplace(rows, rows[0] + part)
    return max(rows)


@functools.cache
def workers(count: int) -> Workers:
    """The workers of this process."""
    return Workers(count)


def parts_of(batch: ScoreBatch, runs: Sequence[slice]) -> list[ScoreBatch]:
    """The batch's candidates in runs, each with the queries that it has."""
    return [_part(batch, run) for run in runs]


def _part(batch: ScoreBatch, run: slice) -> ScoreBatch:
    groups = list(batch.groups(run.start, run.stop))
    if not groups:
        return ScoreBatch(batch.queries.part(slice(0, 0)), batch.candidates.part(run), offsets([]))
    first, last = groups[0][0], groups[-1][0]
    cu_candidates = batch.cu_candidates[first : last + 2].clip(run.start, run.stop) - run.start
    return ScoreBatch(batch.queries.part(slice(first, last + 1)), batch.candidates.part(run), cu_candidates)
