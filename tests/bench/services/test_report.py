"""The report on services: aims and a page, from canned runs."""

import json
import math
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from bandrank_bench.cpu.agreement import Agreement
from bandrank_bench.infinity import Configuration
from bandrank_bench.overload.loops import Window
from bandrank_bench.overload.outcomes import Outcome
from bandrank_bench.overload.processors import Busy
from bandrank_bench.services.aims import aims
from bandrank_bench.services.command import main
from bandrank_bench.services.contenders import Contender, fastest_of_each_precision, infinity, ours, tei
from bandrank_bench.services.experiments import Plan
from bandrank_bench.services.field import infinities
from bandrank_bench.services.memory import Memory
from bandrank_bench.services.report import Results, json_lines, markdown
from bandrank_bench.services.runs import Run

PLAN = Plan((1, 64), (0.8,), (0.8,), 4.0, 10.0, 1.0, 10.0, 10, 2)
FULL, SPARSE = ours(Path("full"), "full", "int8"), ours(Path("sparse"), "sparse", "int8")
SLOW, FAST = (infinity(Path("infinity"), Path("full"), Configuration(dtype=dtype)) for dtype in ("float32", "int8"))


def runs(contender: Contender, rate: int, *, last_s: float = 0.1) -> list[Run]:
    """Returns a run of 64 clients with `rate` answers a second, and runs of a Poisson process and of equal intervals at
    80% of the capacity. In these, answers take 0.1 s, except for the last one of the Poisson process.
    """
    window = Window(0.0, 1.0)
    closed = [Outcome("answered", 200, 0.5, 1.0, None, 10)] * rate
    opened = [Outcome("answered", 200, 0.1, 0.2, 0.001, 10)] * 9
    opened.append(Outcome("answered", 200, 0.1, 0.1 + last_s, 0.001, 10))
    many = Run(contender.name, 0, closed, window, Busy(0.1, 1.8, 0.02), 0.1, 0.1, clients=64)
    poisson = Run(contender.name, 0, opened, window, Busy(0.1, 1.8, 0.02), 0.1, 0.1, load=0.8, queue_s=[0.1] * 10)
    return [many, poisson, replace(poisson, outcomes=[opened[0]] * 10, steady=True)]


ALL = [*runs(FULL, 40, last_s=0.3), *runs(SPARSE, 80), *runs(SLOW, 5), *runs(FAST, 20)]


def test_the_goodput_is_compared_on_the_same_weights() -> None:
    """The peers are infinity's best configuration and that of the same precision; a sparse pattern is other work."""
    best, same, *spreads = aims(ALL, [FULL, SPARSE, SLOW, FAST])

    assert best.text.endswith(f"{FULL.name} over {FAST.name}")
    assert best.value == same.value == pytest.approx(2.0)
    assert best.reached
    assert [aim.value for aim in spreads] == pytest.approx([1.0, 3.0, 1.0, 1.0])
    assert [aim.reached for aim in spreads] == [True, False, True, True]
    assert spreads[0].text == f"{FULL.name}: p99 over p50 at 80%, equal intervals"
    assert spreads[1].text == f"{FULL.name}: p99 over p50 at 80%, a Poisson process"


def test_without_infinity_its_aim_is_not_reached() -> None:
    (best, *_) = aims(runs(FULL, 40), [FULL])

    assert best.value is None
    assert not best.reached


def test_the_page_has_every_service_in_every_table() -> None:
    results = Results(
        contenders=[FULL, SPARSE, SLOW, FAST],
        runs=ALL,
        agreements=[Agreement(FULL.name, 0.01, 0.5)],
        tried={SLOW: 5.0, FAST: 20.0},
        left_out={"TEI": "it did not answer"},
        memory={FULL.name: (Memory(100.0, 90.0, 110.0), Memory(120.0, 110.0, 130.0))},
        calm_s=0.1,
        facts={"date": "today"},
    )
    page = markdown(results, PLAN)

    assert f"| {FULL.name} | 40.0 | 40.0 | 500 | 500 | 40 | 0 |" in page
    assert f"| {FULL.name} | 10.0 | 25.0 | 100 | 300 | 3.0 | 1.0 | 3.0 | 10 | 0 |" in page
    assert f"| {FULL.name} | 10.0 | 50.0 | 100 | 100 | 1.0 | 1.0 | 1.0 | 10 | 0 |" in page
    assert "### 80%, equal intervals" in page
    assert f"| {FULL.name} | 100 | 90 | 130 |" in page
    assert f"| {FAST.name} | 20.0 |" in page
    assert "Left out: TEI: it did not answer." in page
    assert "it used at most 0.10 processors, and other processes 0.02." in page
    assert "the machine was slow" not in page
    slow = replace(ALL[0], after_s=0.2)
    assert f"slow before or after them: {FULL.name}, 64 clients." in markdown(replace(results, runs=[slow]), PLAN)
    slower = replace(slow, outcomes=slow.outcomes[:1])
    assert markdown(replace(results, runs=[*ALL, slower]), PLAN) == page.replace("12 of 12 runs", "12 of 13 runs")
    assert "12 of 12 runs were between two products" in page
    lines = [json.loads(line) for line in json_lines(results).splitlines()]
    assert [line["contender"] for line in lines] == [run.contender for run in ALL]
    for line, run in zip(lines, ALL, strict=True):
        took_s = sorted(one.done_s - one.due_s for one in run.outcomes)
        assert [math.exp(each / 100) / 1e3 for each in accumulate(line["took_steps"])] == pytest.approx(
            took_s, rel=0.01
        )


def test_one_configuration_of_each_precision_is_kept() -> None:
    """The fastest configuration is kept; one that could not be started has a rate of 0 and is left out."""
    torch, onnx = (infinity(Path("i"), Path("full"), Configuration(engine)) for engine in ("torch", "optimum"))

    assert fastest_of_each_precision({torch: 3.0, onnx: 4.0, FAST: 0.0}) == [onnx]


def test_tei_is_where_its_address_says() -> None:
    """Anything but http://host:port is an error."""
    with tei("http://127.0.0.1:8080").start(Path("/dev/null")) as service:
        assert (service.url, service.pid) == ("http://127.0.0.1:8080", None)
    with pytest.raises(ValueError, match="http://host:port"):
        tei("localhost:8080")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--clients", "1,4"], "--clients needs 8 or more"),
        (["--only", "another"], "no service can be compared: --only another"),
    ],
)
def test_what_cannot_be_compared_is_said(
    asked: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*asked, "--infinity", str(tmp_path), "--out", str(tmp_path / "page.md")])

    assert words in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_configurations_are_asked_for_by_any_part_of_their_names() -> None:
    """The name of an engine selects its configurations alone."""
    assert {how.engine for how in infinities("infinity torch")} == {"torch"}
    assert {how.engine for how in infinities("infinity")} == {"torch", "optimum"}
    assert infinities("bandrank") == []
