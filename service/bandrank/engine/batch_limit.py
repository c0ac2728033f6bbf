"""Limits the rows of a batch where memory is small or shared with other processes."""

LEAST_ROWS = 256  # a lack of memory never lowers the limit below this
GROW_AFTER = 32  # successful full batches before the limit grows; doubled each time it grew too early


class BatchLimit:
    """The most rows of a batch: halved when memory runs out, and later doubled again, up to its initial value.

    A shortage may be brief, caused by another process. Where it lasts, attempts to grow become rare. The scoring thread
    calls the methods; other threads may read `rows`.
    """

    def __init__(self, rows: int) -> None:
        self.rows = self._most_rows = rows
        self._full_batches = 0
        self._grow_after = GROW_AFTER
        self._has_grown = False

    def fail(self, rows: float) -> None:
        """Lowers the limit after a batch of `rows` rows ran out of memory."""
        self.rows = min(self.rows, max(LEAST_ROWS, max(self.rows, int(rows)) // 2))
        self._full_batches = 0
        if self._has_grown:
            self._grow_after *= 2
            self._has_grown = False

    def succeed(self, rows: float) -> None:
        """Counts a batch that fitted into memory; after enough that were at least half full, the limit grows."""
        if self.rows == self._most_rows or 2 * rows < self.rows:
            return
        self._full_batches += 1
        if self._full_batches >= self._grow_after:
            self.rows = min(self._most_rows, 2 * self.rows)
            self._full_batches = 0
            self._has_grown = True
