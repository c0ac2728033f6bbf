"""Parts of a batch side by side, each on a thread that computes alone: a core is a worker.

In a product over all cores, each waits for the slowest; with another process on one of them, all products wait. Workers
take parts of the batch, one after the other, and wait for each other only at its end.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from bandrank.models.processors import Processors

Part = TypeVar("Part")
Result = TypeVar("Result")


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


@functools.cache
def workers(count: int) -> Workers:
    """The workers of this process."""
    return Workers(count)
