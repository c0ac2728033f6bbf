"""The figures of a service, from the outcomes of its runs."""

from dataclasses import replace

import pytest

from bandrank_bench.overload.loops import Window
from bandrank_bench.overload.outcomes import Kind, Outcome
from bandrank_bench.overload.processors import Busy
from bandrank_bench.services.runs import Run, counted, figures, spread, together


def outcome(kind: Kind, due_s: float, done_s: float) -> Outcome:
    """Returns the outcome of a request with ten candidates, sent 2 ms late."""
    return Outcome(kind, 200, due_s, done_s, 0.002, 10)


def run(*outcomes: Outcome, clients: int | None = None, load: float | None = None, number: int = 0) -> Run:
    """Returns a run of 3 s after a warm-up of 1 s; at a load, the queue alone would take 0.1 s of each request."""
    queue_s = [0.1] * len(outcomes) if load else []
    return Run(
        "one",
        number,
        outcomes,
        Window(1.0, 4.0),
        Busy(0.1, 1.8, 0.0),
        0.1,
        0.1,
        clients=clients,
        load=load,
        queue_s=queue_s,
    )


def test_rates_last_until_the_last_answer() -> None:
    """Late answers count in the throughput but not in the goodput, in every round."""
    first = run(outcome("answered", 0.0, 1.0), outcome("answered", 1.0, 5.0), clients=2)
    second = run(outcome("answered", 2.0, 3.0), outcome("late", 3.0, 15.0), clients=2, number=1)
    found = figures([first, second])

    assert first.throughput == pytest.approx(2 / 5)
    assert (found.sent, found.unanswered) == (4, 1)
    assert found.throughput == pytest.approx(4 / 20)
    assert found.goodput == pytest.approx(3 / 20)


def test_latencies_are_of_what_was_due_after_the_warm_up() -> None:
    """Only right answers have a latency; the time in the queue alone counts for every request after the warm-up."""
    outcomes = [outcome("answered", 0.5, 9.0), outcome("answered", 1.0, 1.5), outcome("failed", 2.0, 8.0)]
    found = figures([run(*outcomes, load=0.8)])

    assert found.latency is not None
    assert found.latency.most == pytest.approx(500)
    assert found.queue is not None
    assert found.queue.count == 2
    assert found.offered == pytest.approx(2 / 3)


def test_runs_are_chosen_by_what_they_are() -> None:
    runs = [run(outcome("answered", 1.0, 2.0), clients=8), run(outcome("answered", 1.0, 3.0), load=0.8)]
    at_load = together(runs, "one", lambda one: one.load == 0.8)

    assert at_load is not None
    assert spread(at_load.latency) == 1.0
    assert at_load.latency is not None
    assert at_load.latency.p50 == pytest.approx(2000)
    assert together(runs, "other", lambda _: True) is None
    assert spread(None) is None


def test_runs_of_a_slow_machine_count_where_there_are_no_others() -> None:
    """A slow phase can end or begin during a run, so that one of the two products is slow."""
    calm, slow, slowed = (run(clients=8), replace(run(clients=8), before_s=0.2), replace(run(load=0.8), after_s=0.2))

    assert counted([slow, calm, slowed], 0.1) == [calm, slowed]
    assert counted([slow, slowed, slowed], 0.1) == [slow, slowed, slowed]
