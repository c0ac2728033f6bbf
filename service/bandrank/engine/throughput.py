"""The measured speed of each lane, from which waiting times and budgets are predicted."""

from collections.abc import Mapping

# A batch is believed to be at most this many times as slow as those before it, and this many seconds: a pause of the
# machine says nothing about the batches after it. A lasting change of speed is learnt all the same, in a few batches.
MOST_SLOWDOWN, MOST_PAUSE_S = 4.0, 0.05
DECAY = 0.9  # the factor of older batches at each report; about ten batches count


class Throughput:
    """Rows per second of each lane. Batches count by their size, so that the fixed costs of tiny ones do not mislead.

    Written by the scoring thread and read by the event loop; a read may miss the batch that is being reported.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def report(self, lane: str, rows: float, seconds: float) -> None:
        """Records that a batch of `rows` took `seconds`."""
        old_rows, old_seconds = self._sums.get(lane, (0.0, 0.0))
        if old_rows:
            seconds = min(seconds, MOST_SLOWDOWN * self.seconds(lane, rows) + MOST_PAUSE_S)
        self._sums[lane] = DECAY * old_rows + rows, DECAY * old_seconds + seconds

    def seconds(self, lane: str, rows: float) -> float:
        """The seconds that `rows` will take; 0 until a batch of the lane was timed."""
        measured_rows, measured_seconds = self._sums.get(lane, (0.0, 0.0))
        return rows * measured_seconds / measured_rows if measured_rows else 0.0

    def total(self, rows_by_lane: Mapping[str, float]) -> float:
        """The seconds that rows of several lanes will take, one lane after the other."""
        return sum(self.seconds(lane, rows) for lane, rows in rows_by_lane.items())
