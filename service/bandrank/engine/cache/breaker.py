"""Decides when to stop calling a server that does not answer, and when to try again."""

from collections.abc import Callable
from enum import Enum


class BreakerState(Enum):
    """The state of a breaker, whose value the metric shows.

    CLOSED: calls are made.  HALF_OPEN: one call is made, as a probe.  OPEN: none is made until the cool-down is over.
    """

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class CircuitBreaker:
    """Opens after `threshold` failures in a row; one call probes after a cool-down, which doubles if the probe fails.

    The outcome of a call counts only while the state in which it was permitted lasts: a call that began before the
    breaker opened says nothing about the server since, and must not decide in place of the probe. After each call one
    of `succeeded`, `failed` and `abandoned` must be called, with its permit.

    A call whose success would say too little to close the breaker is not a probe. Such calls are permitted after the
    cool-down until a probe starts; each of them that fails begins a new cool-down, as a failed probe does.
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
        self._changes = 0  # of the state; a permit is this count at the time it was given
        self.state = BreakerState.CLOSED

    @property
    def cooling(self) -> bool:
        """Whether the breaker is open and its cool-down is not over."""
        return self.state is BreakerState.OPEN and self._clock() < self._probe_at

    def permit(self, *, probes: bool = True) -> int | None:
        """A permit to make a call now, or None.  probes: whether its success would be enough to close the breaker."""
        if self.cooling or self.state is BreakerState.HALF_OPEN:
            return None
        if self.state is BreakerState.OPEN and probes:
            self._enter(BreakerState.HALF_OPEN)
        return self._changes

    def succeeded(self, permit: int) -> None:
        """Records a call whose success is enough to close the breaker."""
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
        """Records a call that says nothing about the server. The next call may probe.

        The server was not asked, the caller left before the answer, or a success was not enough.
        """
        if permit == self._changes and self.state is BreakerState.HALF_OPEN:
            self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._changes += 1
