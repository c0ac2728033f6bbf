"""The latency that queueing alone causes: the times of a server that works on one request after the other.

A service on a CPU is close to such a server, because its work grows with the tokens however it batches.
"""

from collections.abc import Sequence

from bandrank_bench.overload.loops import poisson_arrivals
from bandrank_bench.overload.summary import percentile

LONG_RUN = 100_000.0  # times the work of a request


def first_come_first_served(arrivals: Sequence[float], work: Sequence[float]) -> list[float]:
    """Seconds from each arrival until its work is done (Lindley's recursion). Both in seconds, arrivals ascending."""
    free, times = 0.0, []
    for arrival, seconds in zip(arrivals, work, strict=True):
        free = max(free, arrival) + seconds
        times.append(free - arrival)
    return times


def of_the_queue(load: float) -> float:
    """The 99th percentile over the median for equal requests arriving as a Poisson process, in the long run."""
    arrivals = poisson_arrivals(load, LONG_RUN, seed=0)
    times = sorted(first_come_first_served(arrivals, [1.0] * len(arrivals)))
    return percentile(times, 99) / percentile(times, 50)
