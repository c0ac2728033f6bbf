"""The device of a run: a GPU, or in a dry run the CPU, with the same operations in plain torch and tiny sizes.

Times are of replays of a CUDA graph, which leaves the host's part out. Inputs are random, because zeros make a card
run faster.
"""

import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bandrank_kernels import Backend

REPEATS = (5, 50)  # the fewest and the most measurements for a median, within TIMING_US
TIMING_US = 200_000.0
SPAN_US, MOST_IN_A_SPAN = 1_000.0, 20  # replays between two events; more dilute the ends
BUSY_CYCLES = 60_000  # 30 us at 2 GHz: longer than the host needs to enqueue a replay
COLD_BYTES = 256e6  # inputs in rotation: five times the 50 MB of an H100's level 2 cache
MOST_SETS = 32
WARM_CALLS = 10  # per replay, on one input
FEW_NUMBERS = 1 << 18  # a megabyte


class Skipped(Exception):
    """A case lacks something that it needs; the message says what."""


class Lab:
    """The device of a run. backend: of our operations.  dtype: of the timed tensors."""

    def __init__(self, *, dry: bool) -> None:
        self.dry = dry
        self.device = torch.device("cpu") if dry else torch.device("cuda", 0)
        self.backend: Backend = "vectorized" if dry else "cuda"
        self.dtype = torch.float32 if dry else torch.float16

    def require_gpu(self) -> None:
        """Raises Skipped in a dry run."""
        if self.dry:
            raise Skipped("runs on a GPU alone")

    def randn(self, *shape: int, dtype: torch.dtype | None = None, seed: int = 0) -> Tensor:
        """N(0, 1) numbers drawn on the device, or a few on the host, so that tools watch only our kernels."""
        where = self.device if math.prod(shape) > FEW_NUMBERS else torch.device("cpu")
        numbers = torch.randn(shape, generator=torch.Generator(where).manual_seed(seed), device=where)
        return numbers.to(self.device, dtype or self.dtype)

    def synchronize(self) -> None:
        """Waits until the device is idle."""
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def is_alive(self) -> bool:
        """False after an error that CUDA cannot recover from, such as an illegal address."""
        try:
            self.synchronize()
        except (RuntimeError, AssertionError):  # torch asserts that there is a card
            return False
        return True

    def tidy(self) -> None:
        """Returns freed memory to the device, so that the next case gets it in one piece."""
        if not self.dry:
            torch.cuda.empty_cache()

    def capture(self, call: Callable[[], object]) -> Callable[[], object]:
        """Captures the launches of `call`, which must not wait for the device; returns the replay (dry: `call`)."""
        if self.dry:
            return call
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch leaves it bare
        stream.wait_stream(torch.cuda.current_stream(self.device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
            self.synchronize()
            with torch.cuda.graph(graph):  # leaves its stream current if it fails, hence the outer one
                call()
        return graph.replay

    def median_us(self, run: Callable[[], object]) -> float:
        """Microseconds of the work that `run` enqueues, once warm, by the device's clock.

        The device is kept busy until the host has enqueued everything to be timed, so that it never waits for the host.
        """
        run()
        once = max(1.0, self._time_us(run, 1))
        if self.dry:
            return once
        calls = max(1, min(MOST_IN_A_SPAN, int(SPAN_US / once)))
        least, most = REPEATS
        repeats = max(least, min(most, int(TIMING_US / (calls * once))))
        return statistics.median(self._time_us(run, calls) for _ in range(repeats))

    def _time_us(self, run: Callable[[], object], calls: int) -> float:
        if self.dry:
            started = time.perf_counter()
            run()
            return (time.perf_counter() - started) * 1e6
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # likewise
        torch.cuda._sleep(BUSY_CYCLES * (1 + calls))  # type: ignore[no-untyped-call]  # likewise
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / calls

    def num_sets(self, input_bytes: int) -> int:
        """The number of inputs to rotate for a cold cache."""
        return 2 if self.dry else max(2, min(MOST_SETS, math.ceil(COLD_BYTES / input_bytes)))
