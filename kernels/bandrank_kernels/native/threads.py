"""Parts of one operation side by side, where the thread that asks for it may use more than one."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def in_parts(count: int, min_part: int, run: Callable[[int, int], None]) -> None:
    """Calls run(begin, end) for runs that cover 0 .. count - 1, at least `min_part` each, on up to as many threads as
    torch has for the caller. `run` writes its own results, and lets other threads run meanwhile.
    """
    threads = torch.get_num_threads()
    parts = min(threads, count // min_part)
    if parts < 2:
        run(0, count)
        return
    # Whole multiples of `min_part`, so that blocks are full.
    bounds = [count * part // parts // min_part * min_part for part in range(parts)] + [count]
    pool = _pool(threads - 1)
    futures = [pool.submit(run, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    try:
        run(bounds[0], bounds[1])
    finally:  # whatever happens, nobody writes into the caller's memory any more
        errors = [future.exception() for future in futures]
    if error := next(filter(None, errors), None):
        raise error


@functools.cache
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="bandrank-native")
