"""Computes the parts of a batch side by side, each on a single thread: every core is a worker.

In a product over all cores, each core waits for the slowest; if another process runs on one, every product waits.
Workers take parts of the batch, one after the other, and wait for each other only at its end.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from bandrank.models.arriving import Arriving
from bandrank.models.processors import Processors

Part = TypeVar("Part")
Result = TypeVar("Result")


class Workers:
    """Threads that each compute with one torch thread.

    processors: on which they compute.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.processors = Processors()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="bandrank-worker")
        self._together = ThreadPoolExecutor(1, thread_name_prefix="bandrank-together")
        started = threading.Barrier(count)

        def compute_alone() -> None:
            torch.get_num_threads()  # adopts the process's number now, which it would otherwise do later
            torch.set_num_threads(1)
            started.wait()

        for future in [self._pool.submit(compute_alone) for _ in range(count)]:
            future.result()
        torch.set_num_threads(count)  # for this thread, and for threads that start later

    def run(self, compute: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """Computes all parts, and returns their results in order; if one fails, its error is raised once all have
        ended.
        """
        if len(parts) < 2 or self.count < 2:
            return [compute(part) for part in parts]
        return self.begin(compute, parts)()

    def begin(
        self, compute: Callable[[Part], Result], parts: Sequence[Part]
    ) -> Arriving[tuple[int, Result], list[Result]]:
        """Queues the parts behind those of earlier calls, and gives their results in order, or an error like `run`.

        Early come the index and the result of each part that has ended, first until the last part begins.
        """
        ended = _Ended[tuple[int, Result]](len(parts))

        def compute_apart(number: int, part: Part) -> Result:
            if number == len(parts) - 1:
                ended.make_room()
            try:
                with self.processors.apart(), torch.inference_mode():
                    result = compute(part)
                ended.put((number, result))
                return result
            finally:
                ended.count()
                self.processors.keep_awake()

        futures = [_submit(self._pool, compute_apart, number, part) for number, part in enumerate(parts)]
        if not parts:
            ended.make_room()

        def results() -> list[Result]:
            errors = [error for future in futures if (error := future.exception()) is not None]
            if errors:
                raise errors[0]
            return [future.result() for future in futures]

        return Arriving(results, ended.until_woken, ended.wake, ended.all)

    def begin_together(
        self, compute: Callable[[Part], Result], part: Part
    ) -> Arriving[tuple[int, Result], list[Result]]:
        """Like `begin`, for a single part, whose layers each use as many threads as there are workers. Nothing comes
        early, and there is room for others once it has ended.
        """
        ended = _Ended[tuple[int, Result]](1)

        def compute_together() -> Result:
            try:
                with torch.inference_mode():
                    return compute(part)
            finally:
                ended.count()
                self.processors.keep_awake()

        future = _submit(self._together, compute_together)
        return Arriving(lambda: [future.result()], ended.until_woken, ended=ended.all)


class _Ended(Generic[Result]):
    """Hands results from the workers that compute them to the thread that waits for them.

    parts: how many there will be.
    """

    def __init__(self, parts: int) -> None:
        self._results = SimpleQueue[Result | None]()  # None wakes the thread that waits
        self._left = parts
        self._has_room = False
        self._lock = threading.Lock()

    def put(self, result: Result) -> None:
        self._results.put(result)

    def make_room(self) -> None:
        """Wakes the thread that waits, and lets `wake` do so from now on."""
        self._has_room = True
        self._results.put(None)

    def wake(self) -> None:
        if self._has_room:
            self._results.put(None)

    def count(self) -> None:
        """Counts a part that has ended, whether or not it has a result."""
        with self._lock:
            self._left -= 1
        if self.all():
            self.make_room()

    def all(self) -> bool:
        """Whether all parts have ended."""
        return self._left == 0

    def until_woken(self) -> Iterator[Result]:
        """The results, as they come, that are put before the next call of `wake`, of those that no call gave before;
        returns at once if called again once all have ended.
        """
        while (result := self._results.get()) is not None:
            yield result
        if self.all():
            self.wake()


def _submit(pool: ThreadPoolExecutor, compute: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Like `pool.submit`, but computes on the calling thread once the pool takes no more work, as the process ends."""
    try:
        return pool.submit(compute, *arguments)
    except RuntimeError:
        future: Future[Result] = Future()
        try:
            future.set_result(compute(*arguments))
        except Exception as error:  # noqa: BLE001  # raised where the result is asked for
            future.set_exception(error)
        return future


@functools.cache
def workers(count: int) -> Workers:
    """The workers of this process."""
    return Workers(count)
