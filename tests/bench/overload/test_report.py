"""The report on overload: aims, tables and a section of a page, from canned runs."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bandrank_bench.overload.aims import aims, conditions
from bandrank_bench.overload.experiments import Company, Measured, Plan, Point
from bandrank_bench.overload.plot import plot
from bandrank_bench.overload.processors import Busy
from bandrank_bench.overload.report import BEGIN, END, put_section, report
from bandrank_bench.overload.summary import Percentiles, Summary

PLAN = Plan((0.9, 3.0, 5.0), 30.0, 3.0, 10.0, 60.0, 8, (10, 10, 10, 10, 30), {}, 60.0, 0.1, 0, 0)


def run(goodput: float = 100.0, *, p99: float = 100.0, refused: int = 0, refusal_ms: float = 5.0) -> Summary:
    """Returns what a client saw: 1,000 answers and some refusals."""
    return Summary(
        sent=1000 + refused,
        counts=Counter({"answered": 1000, "refused": refused} if refused else {"answered": 1000}),
        statuses=Counter(),
        offered=goodput,
        goodput=goodput,
        goodput_candidates=14 * goodput,
        admitted=Percentiles(1000, p99 / 2, p99, p99),
        refused=Percentiles(refused, 1.0, refusal_ms, refusal_ms) if refused else None,
        generator=Percentiles(1000, 0.5, 2.0, 4.0),
        retry_after_s=Counter({1: refused}) if refused else Counter(),
        tokens=80.0,
        busy=Busy(0.1, 1.8, 0.02),
    )


def measured(at_5: Summary) -> Measured:
    """Returns measurements that reach every aim below 5 times the capacity; `at_5` is what a client saw there."""
    points = [
        Point(0.9, run(), run(90.0, p99=100.0), run()),
        Point(3.0, run(), run(95.0, p99=150.0, refused=2000), run()),
        Point(5.0, run(), at_5, run()),
    ]
    polite = [Company("none", run(10.0, p99=40.0), None), Company("a flood", run(10.0, p99=60.0), run(refused=2000))]
    return Measured(run(), points, polite)


def missed(at_5: Summary) -> list[str]:
    return [aim.text for aim in aims(measured(at_5)) if not aim.reached]


def test_a_service_on_the_bound_reaches_it() -> None:
    """Bounds: 90% of the capacity, twice the p99 at 90% load, 20 ms for refusals, 1.5 times a client's p99 alone."""
    assert missed(run(90.0, p99=200.0, refused=4000, refusal_ms=20.0)) == []


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (run(89.0, refused=4000), "goodput at 5 x"),
        (run(90.0, p99=201.0, refused=4000), "p99 of what is admitted"),
        (run(90.0, refused=4000, refusal_ms=21.0), "p99 of refusals"),
        (replace(run(90.0), sent=1001), "answers that are wrong"),
    ],
)
def test_a_service_beyond_a_bound_misses_that_aim_alone(seen: Summary, expected: str) -> None:
    (text,) = missed(seen)

    assert text.startswith(expected)


def test_goodput_is_a_share_of_the_capacity_of_its_own_minutes() -> None:
    """If the machine becomes half as fast between the two measurements of its capacity, their mean counts."""
    point = Point(3.0, run(100.0), run(60.0), run(50.0))

    assert point.share == pytest.approx(0.8)
    assert point.change == pytest.approx(0.5)


def test_an_aim_that_was_not_measured_is_not_reached() -> None:
    only_low = Measured(run(), [Point(0.5, run(), run(50.0), run())], [])

    assert [aim.value for aim in aims(only_low) if not aim.reached] == [None] * 4


def test_figures_of_a_busy_machine_do_not_count() -> None:
    calm, busy = run(90.0, refused=4000), replace(run(90.0, refused=4000), busy=Busy(0.1, 1.0, 0.9))

    assert all(condition.reached for condition in conditions(measured(calm)))
    assert "do not count" not in report(measured(calm), PLAN, {}, "overload.svg")
    assert "do not count" in report(measured(busy), PLAN, {}, "overload.svg")


def test_the_section_has_a_row_for_each_load_and_each_company() -> None:
    seen = replace(run(90.0, refused=4000), statuses=Counter({503: 2}), sent=5003)
    seen.counts.update({"failed": 2, "lost": 1})

    text = report(measured(seen), PLAN, {"command": "the command"}, "overload.svg")

    for expected in (
        "## Overload\n\n6 of 7 aims are reached. Service",
        "| at most 0 | 3 | no |\n\n| condition under which the figures count | bound | measured | met |",
        "Requests have 10 (80%) or 30 (20%) candidates",
        "| 3 x | 95.0 | 95.0 | 95% | 3,000 | 1,000 | 2,000 | 0 | 75.0 / 150.0 | 1.0 / 5.0 | 1 |",
        "| 5 x | 90.0 | 90.0 | 90% | 5,003 | 1,000 | 4,000 | 2 503, 1 lost |",
        "| 0.9 x | 100.0, 100.0 | 0.5 | 2.0 | 4 | 0.10 | 1.80 | 0.02 |",
        "| a flood | 1,000 | 1,000 | 30 | 60 | 1.50 | 100.0 | 100.0 | 2,000 |",
        "![Goodput and latency over the offered load](overload.svg)",
        "- command: the command",
    ):
        assert expected in text


def test_the_section_replaces_its_former_self_alone() -> None:
    """What others wrote before and after the section stays."""
    page = put_section("# Operations\n\n## Before\n", "old\n") + "\n## After\n"

    replaced = put_section(page, "new\n")

    assert replaced == f"# Operations\n\n## Before\n\n{BEGIN}\nnew\n{END}\n\n## After\n"
    with pytest.raises(ValueError, match="or neither"):
        put_section(f"# Operations\n{BEGIN}\n", "new\n")


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    plot(measured(run()), tmp_path / "overload.svg")

    assert "</svg>" in (tmp_path / "overload.svg").read_text(encoding="utf-8")
