"""Decides when to stop calling a server that does not answer, and when to try again."""

from collections.abc import Callable
from enum import Enum


class BreakerState(Enum):
    """CLOSED: calls are made. HALF_OPEN: one call is made, as a probe. OPEN: none is until the cool-down is over. The
    metric has these values.
    """

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `threshold` failures in a row; after a cool-down, which doubles when it fails, one call probes.

    How a call ended counts only in the state in which it was permitted: one that began before the breaker opened says
    nothing of the server after that, and must not settle what a probe is to find out. After each call one of
    `succeeded`, `failed` and `abandoned` must be called, with its permit.

    A call whose success says too little to close the breaker is not a probe. Such calls are permitted once the
    cool-down is over, until one probes; each of them that fails begins a new cool-down, as a probe does.
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
        self._changes = 0  # of the state; a permit is their number when it was given
        self.state = BreakerState.CLOSED

    @property
    def cooling(self) -> bool:
        """Whether no call would be permitted before the cool-down is over."""
        return self.state is BreakerState.OPEN and self._clock() < self._probe_at

    def permit(self, *, probes: bool = True) -> int | None:
        """Leave to make a call now; None if it may not be made. probes: whether its success would say enough."""
        if self.cooling or self.state is BreakerState.HALF_OPEN:
            return None
        if self.state is BreakerState.OPEN and probes:
            self._enter(BreakerState.HALF_OPEN)
        return self._changes

    def succeeded(self, permit: int) -> None:
        """Records that a call was answered whose success says enough."""
        if permit != self._changes:
            return
        if self.state is not BreakerState.CLOSED:
            self._enter(BreakerState.CLOSED)
        self._failures = 0
        self._cooldown_s = self._first_cooldown_s

    def failed(self, permit: int) -> None:
        """Records that a call was not answered, or not in time."""
        if permit != self._changes:
            return
        self._failures += 1
        if self.state is not BreakerState.CLOSED:
            self._cooldown_s = min(2 * self._cooldown_s, self._max_cooldown_s)
        elif self._failures < self._threshold:
            return
        self._enter(BreakerState.OPEN)
        self._probe_at = self._clock() + self._cooldown_s

    def abandoned(self, permit: int) -> None:
        """Records that nothing is known: the server was not asked, the caller left before the answer, or that said too
        little. The next call may probe.
        """
        if permit == self._changes and self.state is BreakerState.HALF_OPEN:
            self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._changes += 1
