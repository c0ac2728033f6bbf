"""Runs parts of one operation in parallel, if the calling thread may use more than one thread."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

import torch


def in_parts(count: int, min_part: int, run: Callable[[int, int], None]) -> None:
    """Calls run(begin, end) for ranges that cover 0 .. count - 1, at least `min_part` each, on up to as many threads as
    torch has for the caller. `run` writes its own results, and lets other threads run meanwhile.

    A free thread takes the next part; if no other thread can be had, as while the process ends, the caller takes them
    all. An error in a part is raised when all have ended.
    """
    threads = torch.get_num_threads()
    parts = min(threads, count // min_part)
    if parts < 2:
        run(0, count)
        return
    # Whole multiples of `min_part`, so that blocks are full.
    bounds = [count * part // parts // min_part * min_part for part in range(parts)] + [count]
    left = iter(range(parts))  # shared by all threads, each of which takes the next
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        for part in left:
            failure: BaseException | None = None
            try:
                run(bounds[part], bounds[part + 1])
            except BaseException as error:  # noqa: BLE001  # raised below, once nobody writes any more
                failure = error
            ended.put(failure)

    with suppress(RuntimeError):  # of a pool that can start no thread, or takes nothing more
        for _ in range(1, parts):
            _pool(threads - 1).submit(work)
    work()
    failures = [ended.get() for _ in range(parts)]
    if failure := next(filter(None, failures), None):
        raise failure


@functools.cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="bandrank-native")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads
