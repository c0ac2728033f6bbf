"""The circuit breaker opens, cools down, lets one call probe, and believes what that call shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tasks import Clock

from bandrank.engine.cache.breaker import BreakerState, CircuitBreaker

CLOSED, HALF_OPEN, OPEN = BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN


def opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock, threshold=3, cooldown_s=1.0, max_cooldown_s=8.0)
    for _ in range(3):
        breaker.failed(permitted(breaker))
    return breaker


def permitted(breaker: CircuitBreaker) -> int:
    """The permit of a call, which the breaker must allow."""
    permit = breaker.permit()
    assert permit is not None
    return permit


def test_one_call_probes_after_the_cool_down() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 0.99
    assert breaker.permit() is None
    clock.now = 1.0

    assert not breaker.cooling
    assert [breaker.permit() is not None for _ in range(3)] == [True, False, False]
    assert breaker.state is HALF_OPEN


def test_the_cool_down_doubles_with_each_probe_that_fails() -> None:
    """The cool-down doubles up to a limit, and is short again after a success."""
    clock = Clock()
    breaker = opened(clock)
    waits = []
    for _ in range(6):
        started = clock.now
        while (permit := breaker.permit()) is None:
            clock.now += 0.5
        waits.append(clock.now - started)
        breaker.failed(permit)
    clock.now += 8.0
    breaker.succeeded(permitted(breaker))
    for _ in range(3):
        breaker.failed(permitted(breaker))
    clock.now += 1.0

    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert breaker.permit() is not None


def test_a_probe_that_is_abandoned_leaves_the_next_one_to_another() -> None:
    """The next call may probe at once, and the cool-down does not grow."""
    clock = Clock()
    breaker = opened(clock)
    clock.now = 1.0
    breaker.abandoned(permitted(breaker))

    assert breaker.state is OPEN
    breaker.failed(permitted(breaker))
    clock.now = 3.0
    assert breaker.permit() is not None


@pytest.mark.parametrize("probing", [False, True], ids=["while it is open", "beside the probe"])
def test_calls_from_before_it_opened_change_nothing(*, probing: bool) -> None:
    """A late outcome changes neither the state nor its duration; only the probe decides."""
    clock = Clock()
    breaker = CircuitBreaker(clock, threshold=3, cooldown_s=1.0)
    before = permitted(breaker)
    for _ in range(3):
        breaker.failed(before)
    clock.now = 1.0
    probe = permitted(breaker) if probing else 0
    breaker.succeeded(before)
    breaker.failed(before)
    breaker.abandoned(before)

    assert breaker.state is (HALF_OPEN if probing else OPEN)
    breaker.succeeded(probe if probing else permitted(breaker))
    assert breaker.state is CLOSED
    breaker.failed(before)
    assert breaker.state is CLOSED


def test_a_call_that_is_no_probe_leaves_the_probe_to_others() -> None:
    """After the cool-down such calls are permitted until a probe starts, and only the probe can close the breaker."""
    clock = Clock()
    breaker = opened(clock)
    assert breaker.permit(probes=False) is None
    clock.now = 1.0
    permits = [breaker.permit(probes=False) for _ in range(2)]
    probe = permitted(breaker)

    assert None not in permits
    assert breaker.permit(probes=False) is None
    for permit in permits:
        assert permit is not None
        breaker.failed(permit)
    assert breaker.state is HALF_OPEN
    breaker.succeeded(probe)
    assert breaker.state is CLOSED


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.sampled_from(["ok", "fail", "gone"])), max_size=80))
def test_a_server_that_fails_is_asked_less_and_less(calls: list[tuple[float, bool, str]]) -> None:
    """In any history a closed breaker permits all calls, an open one none before its time and a half-open one none;
    `cooling` agrees. Calls that are no probes never close the breaker, but begin a new cool-down if they fail.
    """
    clock = Clock()
    breaker = CircuitBreaker(clock, threshold=3, cooldown_s=1.0, max_cooldown_s=4.0)
    failures, opened_at, cooldown = 0, None, 1.0
    for pause, probes, outcome in calls:
        clock.now += pause
        expected = opened_at is None or clock.now >= opened_at + cooldown
        assert breaker.cooling is not expected
        permit = breaker.permit(probes=probes)
        assert (permit is not None) is expected
        if permit is None:
            continue
        if opened_at is not None:
            assert (breaker.permit(probes=False) is None) is probes
        match outcome:
            case "ok" if probes:
                breaker.succeeded(permit)
                failures, opened_at, cooldown = 0, None, 1.0
            case "fail":
                breaker.failed(permit)
                failures += 1
                if opened_at is not None:
                    cooldown = min(2 * cooldown, 4.0)
                if opened_at is not None or failures == 3:
                    opened_at = clock.now
            case _:
                breaker.abandoned(permit)
        assert breaker.state is (CLOSED if opened_at is None else OPEN)
