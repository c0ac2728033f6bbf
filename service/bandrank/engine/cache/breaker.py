"""Decides when to stop calling a server that does not answer, and when to try again."""

from collections.abc import Callable
from enum import Enum


class BreakerState(Enum):
    """CLOSED: calls are made. HALF_OPEN: one call is made, as a probe. OPEN: none is. The metric has these values."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `threshold` failures in a row; after a cool-down, which doubles when it fails, one call probes.

    After each call that `allows` permits, one of `succeeded`, `failed` and `abandoned` must be called.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        threshold: int = 3,
        cooldown_s: float = 1.0,
        max_cooldown_s: float = 30.0,
    ) -> None:
        self._clock = clock
        self._threshold = threshold
        self._first_cooldown_s = cooldown_s
        self._max_cooldown_s = max_cooldown_s
        self._cooldown_s = cooldown_s
        self._failures = 0
        self._probe_at = 0.0
        self.state = BreakerState.CLOSED

    @property
    def cooling(self) -> bool:
        """Whether no call would be permitted, not even as a probe."""
        return self.state is BreakerState.OPEN and self._clock() < self._probe_at

    def allows(self) -> bool:
        """Whether a call may be made now."""
        if self.state is BreakerState.OPEN and not self.cooling:
            self.state = BreakerState.HALF_OPEN
            return True
        return self.state is BreakerState.CLOSED

    def succeeded(self) -> None:
        """Records that a call was answered."""
        if self.state is BreakerState.OPEN:
            return  # the call was made before: the probe decides
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._cooldown_s = self._first_cooldown_s

    def failed(self) -> None:
        """Records that a call was not answered, or not in time."""
        if self.state is BreakerState.OPEN:
            return
        self._failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._cooldown_s = min(2 * self._cooldown_s, self._max_cooldown_s)
            self._open()
        elif self._failures >= self._threshold:
            self._open()

    def abandoned(self) -> None:
        """Records that the caller left before the answer: nothing is known, and the next call may probe."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def _open(self) -> None:
        self.state = BreakerState.OPEN
        self._probe_at = self._clock() + self._cooldown_s
