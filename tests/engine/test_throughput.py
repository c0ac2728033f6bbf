"""Predicted times follow the measured speed of batches, above all of large ones."""

import math

import pytest
from support.tasks import Clock

from bandrank.engine.throughput import DECAY, MAX_PAUSE_S, MAX_SLOWDOWN, Throughput


def test_nothing_is_predicted_before_the_first_batch() -> None:
    """The prediction is 0 seconds, so that no request is refused for a guess."""
    assert Throughput().seconds("lane", 1000) == 0.0
    throughput = Throughput()
    throughput.report("lane", 0, 1.0)
    assert throughput.seconds("lane", 1000) == 0.0


def test_a_prediction_is_in_proportion_to_the_rows() -> None:
    throughput = Throughput()
    throughput.report("lane", 100, 2.0)

    assert throughput.seconds("lane", 50) == pytest.approx(1.0)
    assert throughput.seconds("other", 50) == 0.0
    assert throughput.total({"lane": 50, "other": 7}) == pytest.approx(1.0)


def test_a_batch_counts_by_its_size_and_age() -> None:
    """Each batch fades by DECAY as later ones of its size arrive; batches of another size do not affect it."""
    throughput = Throughput()
    throughput.report("lane", 1000, 1.0)
    throughput.report("lane", 700, 2.0)
    expected = (DECAY * 1.0 + 2.0) / (DECAY * 1000 + 700)
    throughput.report("lane", 1, 0.1)

    believed_s = MAX_SLOWDOWN * expected + MAX_PAUSE_S
    assert throughput.seconds("lane", 1) == pytest.approx(believed_s)
    assert throughput.seconds("lane", 1000) == pytest.approx(1000 * expected)


def test_many_tiny_batches_say_nothing_about_large_ones() -> None:
    """Tiny batches take 10 ms a row and large ones 10 µs; many rows are predicted at the speed of large batches."""
    throughput = Throughput()
    throughput.report("lane", 4000, 0.04)
    for rows in [1, 5, 20] * 100:
        throughput.report("lane", rows, 0.01 * rows)

    assert throughput.seconds("lane", 100_000) == pytest.approx(1.0)
    assert throughput.least_seconds("lane", 100_000, batch_rows=4096) == pytest.approx(1.0)


def test_the_least_time_comes_from_batches_of_nearly_the_size() -> None:
    """The best recent speed counts, so that a slow large batch is forgotten once somewhat smaller ones are faster."""
    throughput = Throughput()
    throughput.report("lane", 20, 1.0)
    assert throughput.least_seconds("lane", 4000, batch_rows=4000) == 0.0
    assert throughput.least_seconds("lane", 20, batch_rows=20) == pytest.approx(1.0)

    throughput.report("lane", 4000, 40.0)
    assert throughput.least_seconds("lane", 8000, batch_rows=4000) == pytest.approx(80.0)
    throughput.report("lane", 500, 0.5)
    assert throughput.least_seconds("lane", 8000, batch_rows=4000) == pytest.approx(8.0)
    assert throughput.least_seconds("other", 8000, batch_rows=4000) == 0.0


def test_of_much_larger_batches_only_the_least_is_sure() -> None:
    """Batches of 100 rows say something about the next two sizes, up to 4,096 rows; a larger one may take as long."""
    throughput = Throughput()
    assert throughput.sure_seconds("lane", 1000) == 0.0
    throughput.report("lane", 10, 0.01)
    throughput.report("lane", 100, 0.01)

    assert throughput.sure_seconds("lane", 10) == pytest.approx(0.01)
    assert throughput.sure_seconds("lane", 4000) == throughput.seconds("lane", 4000) == pytest.approx(0.4)
    assert throughput.sure_seconds("lane", 40_000) == pytest.approx(0.4096)
    throughput.report("lane", 20_000, 0.1)
    assert throughput.sure_seconds("lane", 40_000) == throughput.seconds("lane", 40_000) == pytest.approx(0.2)


@pytest.mark.parametrize("rows", [20, 4000])
def test_a_pause_of_the_machine_is_no_speed(rows: int) -> None:
    """A single batch that took two seconds longer barely changes the prediction."""
    throughput = Throughput()
    for _ in range(20):
        throughput.report("lane", rows, rows / 10_000)
    throughput.report("lane", rows, rows / 10_000 + 2.0)

    assert throughput.seconds("lane", rows) < 2.5 * rows / 10_000 + MAX_PAUSE_S


def test_a_changed_speed_is_learnt() -> None:
    throughput = Throughput()
    throughput.report("lane", 1000, 1.0)
    for _ in range(100):
        throughput.report("lane", 1000, 4.0)

    assert throughput.seconds("lane", 1000) == pytest.approx(4.0, rel=1e-3)


def test_smaller_batches_show_that_larger_ones_are_slow_no_more() -> None:
    """They do if no larger one has come for a while; cut to a budget, none may ever come."""
    clock = Clock()
    throughput = Throughput(clock)
    throughput.report("lane", 2000, 20.0)
    for clock.now, rows, took_s, expected_s in ((29.0, 500, 0.5, 20.0), (31.0, 500, 0.5, 2.0), (31.0, 2000, 3.0, 3.0)):
        throughput.report("lane", rows, took_s)
        assert throughput.seconds("lane", 2000) == pytest.approx(expected_s)


def test_a_batch_that_is_faster_than_an_old_one_replaces_it() -> None:
    """Where requests are cut for an old speed, batches that show another one come rarely."""
    clock = Clock()
    throughput = Throughput(clock)
    throughput.report("lane", 100, 10.0)
    for clock.now, took_s, row_s in ((29.0, 1.0, 10 / 190), (60.0, 1.0, 0.01), (91.0, 2.0, 2.9 / 190)):
        throughput.report("lane", 100, took_s)
        assert throughput.seconds("lane", 1) == pytest.approx(row_s)


def test_the_best_speed_is_kept_and_the_age_of_the_present_one_known() -> None:
    """Batches that are much smaller affect neither the best speed nor the age."""
    now = 100.0
    throughput = Throughput(lambda: now)
    assert throughput.best_seconds("lane", 1000) == 0.0
    assert throughput.age_s("lane", batch_rows=1000) == math.inf
    throughput.report("lane", 1000, 1.0)
    for _ in range(50):
        throughput.report("lane", 1000, 3.0)
    now = 107.0
    throughput.report("lane", 2, 1.0)

    assert throughput.least_seconds("lane", 1000, batch_rows=1000) == pytest.approx(3.0, rel=0.01)
    assert throughput.best_seconds("lane", 1000, batch_rows=1000) == pytest.approx(1.0)
    assert (throughput.age_s("lane", batch_rows=1000), throughput.age_s("lane", batch_rows=2)) == (7.0, 0.0)
