"""The queue of one server, against what queueing theory says of it."""

import pytest

from bandrank_bench.overload.loops import poisson_arrivals
from bandrank_bench.services.queueing import first_come_first_served, of_the_queue


def test_a_request_waits_for_those_before_it() -> None:
    assert first_come_first_served([0.0, 1.0, 9.0], [2.0, 2.0, 3.0]) == pytest.approx([2.0, 3.0, 3.0])


def test_the_mean_is_that_of_pollaczek_and_khinchine() -> None:
    """With equal work and a load of 0.8, a request waits for twice its own work on average."""
    arrivals = poisson_arrivals(0.8, 200_000.0, seed=1)
    times = first_come_first_served(arrivals, [1.0] * len(arrivals))

    assert sum(times) / len(times) == pytest.approx(3.0, rel=0.05)


def test_the_percentiles_spread_with_the_load() -> None:
    """Almost nobody waits for an idle server, so that all of its percentiles are the same."""
    assert of_the_queue(0.001) == pytest.approx(1.0)
    assert 4 < of_the_queue(0.8) < 6
