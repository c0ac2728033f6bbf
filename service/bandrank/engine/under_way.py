"""The batches that the scoring thread computes, and how long they should still take."""

from bandrank.engine.throughput import Throughput

NO_BATCH = "", 0.0


class UnderWay:
    """The two batches that began last.  now: in monotonic seconds.

    Seconds are computed when asked for: a batch that ends may show its speed.
    """

    def __init__(self, throughput: Throughput) -> None:
        self._throughput = throughput
        self._before = self._newest = NO_BATCH  # lane and rows
        # When the newest began, and how long the one before it should have taken from then on.
        self._began, self._ahead_s = 0.0, 0.0

    def seconds(self, now: float) -> float:
        """How long both should still take; never less than 0."""
        before_s, newest_s = (self._throughput.sure_seconds(*batch) for batch in (self._before, self._newest))
        return max(0.0, self._began + min(self._ahead_s, before_s) + newest_s - now)

    def begin(self, lane: str, rows: float, now: float) -> None:
        """Adds a batch."""
        self._ahead_s = min(self.seconds(now), self._throughput.sure_seconds(*self._newest))
        self._before, self._newest, self._began = self._newest, (lane, rows), now

    def end(self, now: float, *, last: bool) -> None:
        """Removes the older one or, if the last one has ended, both."""
        self._before, self._began = NO_BATCH, now
        if last:
            self._newest = NO_BATCH
