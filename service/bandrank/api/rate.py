"""Limits how many requests a client may send."""

from collections.abc import Callable


class TokenBucket:
    """Lets `per_s` requests a second pass, and one second's worth of them at once, but at least one."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self.per_s = per_s
        self._clock = clock
        self._most = max(1.0, per_s)
        self._left, self._at = self._most, clock()

    def take(self) -> float:
        """Takes a token and returns 0, or returns in how many seconds there will be one."""
        now = self._clock()
        self._left, self._at = min(self._most, self._left + (now - self._at) * self.per_s), now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.per_s
