"""The measured speed of each lane, from which waiting times and budgets are predicted."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

# A batch counts as at most MAX_SLOWDOWN times as slow as those before it, plus MAX_PAUSE_S: a pause of the machine says
# nothing about the batches after it. A lasting change of speed is still learnt, in a few batches.
MAX_SLOWDOWN, MAX_PAUSE_S = 4.0, 0.05
DECAY = 0.9  # the factor of older batches at each report; about ten batches of a size count
BELIEVED_S = 30.0  # after which nobody is refused or cut for a speed that nothing has confirmed since
SIZE = 4  # times as many rows make the next size
NEAR = 2  # sizes: speeds of batches this much smaller hold for large ones too, but for their fixed cost


class _Speed(NamedTuple):
    """Seconds per row in batches of one size: recent, and the least ever. reported: in monotonic seconds."""

    row_s: float
    best_row_s: float
    reported: float


class Throughput:
    """The speed of each lane, by the size of batches.

    The fixed cost of tiny batches, however many there are, says nothing about large ones. Written by the scoring thread
    and read by the event loop; a read may miss the batch that is being reported.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sums: dict[tuple[str, int], tuple[float, float]] = {}  # rows and seconds, by lane and size
        self._speeds: dict[str, dict[int, _Speed]] = {}  # by size; replaced as a whole: others read them meanwhile

    def report(self, lane: str, rows: float, seconds: float) -> None:
        """Records that a batch of `rows` took `seconds`; ignores an empty one."""
        if not rows:
            return
        known, size = self._speeds.get(lane, {}), _size(rows)
        if known:
            seconds = min(seconds, MAX_SLOWDOWN * self.seconds(lane, rows) + MAX_PAUSE_S)
        now = self._clock()
        if size in known and now - known[size].reported > BELIEVED_S and seconds < rows * known[size].row_s:
            self._sums.pop((lane, size), None)  # for which requests may be cut: few batches would come to correct it
        old_rows, old_seconds = self._sums.get((lane, size), (0.0, 0.0))
        rows, seconds = DECAY * old_rows + rows, DECAY * old_seconds + seconds
        self._sums[lane, size] = rows, seconds
        row_s = seconds / rows
        best_row_s = min(known[size].best_row_s, row_s) if size in known else row_s
        speeds = known | {size: _Speed(row_s, best_row_s, now)}
        for larger, old in known.items():
            # Where requests are cut to a budget, no batch of a size that was slow once may ever show otherwise.
            if size < larger <= size + NEAR and old.row_s > row_s and now - old.reported > BELIEVED_S:
                speeds[larger] = old._replace(row_s=row_s)
                self._sums.pop((lane, larger), None)
        self._speeds[lane] = speeds

    def seconds(self, lane: str, rows: float) -> float:
        """The seconds that `rows` will take, judging by the batches nearest in size; 0 until one was timed."""
        known = self._speeds.get(lane)
        return rows * known[_nearest(known, rows)].row_s if known else 0.0

    def sure_seconds(self, lane: str, rows: float) -> float:
        """`seconds`, but no more than the largest batch takes of which the nearest in size say anything.

        Of a batch that is many times larger nothing else is known: what they took may be fixed cost.
        """
        if not (known := self._speeds.get(lane)):
            return 0.0
        nearest = _nearest(known, rows)
        most: float = SIZE ** (nearest + NEAR + 1)
        return min(rows, most) * known[nearest].row_s

    def least_seconds(self, lane: str, rows: float, *, batch_rows: float = 0.0) -> float:
        """The seconds that `rows` take at the best recent speed, as part of a batch.

        0 until a batch was timed that is not much smaller than `batch_rows`.
        """
        return rows * min((speed.row_s for speed in self._near(lane, batch_rows)), default=0.0)

    def best_seconds(self, lane: str, rows: float, *, batch_rows: float = 0.0) -> float:
        """`least_seconds`, at the best speed ever."""
        return rows * min((speed.best_row_s for speed in self._near(lane, batch_rows)), default=0.0)

    def age_s(self, lane: str, *, batch_rows: float = 0.0) -> float:
        """The seconds since the last batch was timed on which `least_seconds` relies; infinity if none was."""
        return self._clock() - max((speed.reported for speed in self._near(lane, batch_rows)), default=-math.inf)

    def unconfirmed_s(self, lane: str, rows: float) -> float:
        """The seconds since the last batch was timed on which `seconds` relies; infinity if none was."""
        known = self._speeds.get(lane)
        return self._clock() - known[_nearest(known, rows)].reported if known else math.inf

    def total(self, rows_by_lane: Mapping[str, float]) -> float:
        """The seconds that rows of several lanes will take, one lane after the other."""
        return sum(self.seconds(lane, rows) for lane, rows in rows_by_lane.items())

    def _near(self, lane: str, rows: float) -> list[_Speed]:
        """The speeds of batches that are not much smaller than `rows`."""
        least = _size(rows) - NEAR
        return [speed for size, speed in self._speeds.get(lane, {}).items() if size >= least]


def _nearest(sizes: Iterable[int], rows: float) -> int:
    """The size nearest to that of `rows`; the larger of two."""
    return min(sizes, key=lambda size: (abs(size - _size(rows)), -size))


def _size(rows: float) -> int:
    return int(math.log(max(rows, 1.0), SIZE))
