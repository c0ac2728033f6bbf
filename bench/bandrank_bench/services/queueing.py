"""What a queue alone makes of arrivals: the times of a server that works on one request after the other.

A server whose work grows with the tokens, as that of any on a CPU does, cannot answer equal requests sooner at the 99th
percentile than in the order of their arrival without a pause: Poisson arrivals come in bursts, whoever serves them.
"""

from collections.abc import Sequence


def first_come_first_served(arrivals: Sequence[float], work: Sequence[float]) -> list[float]:
    """Seconds from each arrival until its work is done; both in seconds, arrivals ascending (Lindley's recursion)."""
    free, times = 0.0, []
    for arrival, seconds in zip(arrivals, work, strict=True):
        free = max(free, arrival) + seconds
        times.append(free - arrival)
    return times
