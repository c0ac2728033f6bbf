"""How many rows a batch may have, where the memory is shared with others or is simply small."""

LEAST_ROWS = 256  # no batch is made smaller than this for want of memory
GROW_AFTER = 32  # full batches that have succeeded; twice as many after each time that it was too early


class BatchLimit:
    """The most rows of a batch: halved where memory runs out, and doubled again after a while, up to where it began.

    The memory may have been short for a moment, because of another process; and where it is short for good, the
    attempts to have larger batches become rare. Used by the scoring thread; others may read `rows`.
    """

    def __init__(self, rows: int) -> None:
        self.rows = self._most_rows = rows
        self._full_batches = 0
        self._grow_after = GROW_AFTER
        self._has_grown = False

    def fail(self, rows: float) -> None:
        """Shrinks after a batch of some rows for which there was not enough memory."""
        self.rows = min(self.rows, max(LEAST_ROWS, max(self.rows, int(rows)) // 2))
        self._full_batches = 0
        if self._has_grown:
            self._grow_after *= 2
            self._has_grown = False

    def succeed(self, rows: float) -> None:
        """Counts a batch for which there was enough; enough of them let batches grow."""
        if self.rows == self._most_rows or 2 * rows < self.rows:
            return
        self._full_batches += 1
        if self._full_batches >= self._grow_after:
            self.rows = min(self._most_rows, 2 * self.rows)
            self._full_batches = 0
            self._has_grown = True
