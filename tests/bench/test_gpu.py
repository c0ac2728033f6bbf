"""The check for GPUs, run without one: all of its stages on tiny shapes, and how it deals with failures."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bandrank_bench.gpu import check, goals, launches, machine, operations, report, sweep, watched
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape
from bandrank_bench.gpu.stages import STAGES, Journal, Record, Stage, run_stage
from bandrank_bench.gpu.supervise import DEVICE_LOST, supervise
from bandrank_kernels.cuda.assembly import AssemblerNotFound
from bandrank_kernels.windowed_attention.cuda.variants import choose_variant

LAB = Lab(dry=False)
BROKEN = """
from bandrank_bench.gpu.stages import Case

def cases(lab):
    return [Case("breaks", lambda: 1 / 0), Case("works", dict)]
"""
NCU = '==PROF== Connected\n"ID","Metric Name","Metric Unit","Metric Value"\n"0","Duration","us","17.5"\n"0","","",""\n'


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage whose first case fails."""
    (tmp_path / "broken_stage.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    return Stage("broken", "broken_stage", 10, gate=True)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run.jsonl")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_dry_run_goes_through_all_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fails; what is not installed is skipped; the times of a dry run reach no goal and no page."""
    stages = [stage for stage in STAGES if stage.name != "service"]  # which has a slow test
    code = check.main(["--dry", "--out", str(tmp_path)], stages)
    (path,) = tmp_path.glob("*.jsonl")
    records = Journal(path).read()
    statuses = {stage.name: {record.status for record in records if record.stage == stage.name} for stage in stages}

    assert code == 0
    assert set().union(*statuses.values()) == {"ok", "skipped"}
    assert all(statuses.values())
    assert capsys.readouterr().out.count("not measured") == len(goals.GOALS)
    assert report.page(tmp_path) == report.page(tmp_path / "empty")


def test_the_stages_share_the_budget(
    broken: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen stages share all of the budget; what a stage leaves, here all of it, goes to those after it."""
    monkeypatch.setattr(check.time, "monotonic", lambda: 0.0)
    names = ("one", "two", "three")
    stages = [replace(broken, name=name, share_s=share_s) for name, share_s in zip(names, (10, 30, 60), strict=True)]
    for chosen, told in (
        ("one,two,three", ["one: up to 20 s", "two: up to 67 s", "three: up to 200 s"]),
        ("one,two", ["one: up to 50 s", "two: up to 200 s"]),
    ):
        check.main(["--dry", "--out", str(tmp_path), "--budget-s", "200", "--stages", chosen], stages)
        assert [line for line in capsys.readouterr().out.splitlines() if " up to " in line] == told
    assert sum(stage.share_s for stage in STAGES) < 600


def test_a_baseline_that_cannot_be_imported_costs_no_case_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline fails in its own case, where it is built."""
    monkeypatch.setitem(sys.modules, "bandrank_bench.gpu.baselines", None)
    assert len([*operations.cases(LAB)]) > 20
    assert len([*operations.baselines(LAB)]) > 20
    with pytest.raises(ImportError):
        operations.baseline("varlen", LAB, Shape(164, 4, 32))


def test_what_is_swept_is_what_ships_and_its_neighbours() -> None:
    """Each shape's own kernel is among those that are tried on it, no kernel is tried twice, and all names differ."""
    tried = [(shape, variant.name_expression) for shape, variant in sweep.choices()]
    for shape in (*sweep.NARROW_SHAPES, *sweep.WIDE_SHAPES):
        shipped = choose_variant(
            dtype="float16",
            head_dim=shape.head_dim,
            capability=(9, 0),
            window=shape.window,
            query_rows=shape.num_globals - 1,
            candidate_rows=shape.candidate_rows,
        )
        assert (shape, shipped.name_expression) in tried
    assert len(set(tried)) == len(tried)


def test_a_trace_is_summed_up() -> None:
    """By hand: 10 us pass from the first to the last event, 3 of them idle; an event of the host does not count."""
    kernel = {"cat": "kernel", "args": {"registers per thread": 64, "device": 0}}
    events = [
        {**kernel, "name": "norm", "ts": 104.0, "dur": 1.0},
        {**kernel, "name": "attend", "ts": 100.0, "dur": 2.0},
        {**kernel, "name": "attend", "ts": 106.0, "dur": 4.0},
        {"cat": "cpu_op", "name": "launch", "ts": 0.0, "dur": 500.0},
    ]

    assert launches.summary(events) == {
        "device_us": 10.0,
        "idle_us": 3.0,
        "launches": 3,
        "kernels": {
            "attend": {"launches": 2, "us": 6.0, "registers per thread": 64},
            "norm": {"launches": 1, "us": 1.0, "registers per thread": 64},
        },
    }
    with pytest.raises(RuntimeError, match="saw nothing"):
        launches.summary(events[3:])


def test_a_failure_is_on_record_and_the_next_case_runs(broken: Stage, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    code = check.main(["--dry", "--out", str(out)], [broken])
    _, failed, works = Journal(out).read()

    assert code == 1
    assert (failed.status, failed.facts["error"]) == ("failed", "ZeroDivisionError: division by zero")
    assert "1 / 0" in failed.facts["traceback"]
    assert works.status == "ok"


def test_a_process_that_cannot_free_its_memory_is_followed_by_another(
    broken: Stage, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage ends after the case that is on record, so that another process can go on with the next one."""

    def in_use() -> None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    lab = Lab(dry=True)
    monkeypatch.setattr(lab, "tidy", in_use)

    assert not run_stage(broken, lab, journal, cap_s=10, first=1)
    assert [record.case for record in journal.read()] == ["works"]


def test_a_stage_that_cannot_be_imported_fails_alone(journal: Journal) -> None:
    assert run_stage(Stage("gone", "bandrank_bench.gpu.gone", 10), Lab(dry=True), journal, cap_s=10)
    assert [(record.case, record.status) for record in journal.read()] == [("cases", "failed")]


def test_cases_out_of_time_are_recorded_as_cut(broken: Stage, journal: Journal, tmp_path: Path) -> None:
    run_stage(broken, Lab(dry=True), journal, cap_s=-1)
    code = check.main(["--dry", "--out", str(tmp_path / "late.jsonl"), "--budget-s", "0"], [broken])

    assert [record.status for record in journal.read()] == ["cut"]
    assert [record.status for record in Journal(tmp_path / "late.jsonl").read()] == ["ok", "cut"]
    assert code == 1


def test_a_process_that_ends_badly_costs_one_case(broken: Stage, journal: Journal) -> None:
    """The next process begins after the last record: a crash becomes a case, and a lost device has left its own."""
    started: list[int] = []
    codes = iter([9, DEVICE_LOST, 0])

    def command(stage: Stage, first: int, _: float) -> list[str]:
        started.append(first)
        code = next(codes)
        if code == DEVICE_LOST:
            journal.write(Record(stage.name, "lost", "failed"))
        return [sys.executable, "-S", "-c", f"raise SystemExit({code})"]

    supervise(broken, journal, command, cap_s=60)

    assert started == [0, 1, 2]
    assert [record.case for record in journal.read()] == ["crashed", "lost"]


def test_a_case_that_hangs_is_left_out(broken: Stage, journal: Journal) -> None:
    started: list[int] = []

    def command(_: Stage, first: int, __: float) -> list[str]:
        started.append(first)
        return [sys.executable, "-S", "-c", "pass" if first else "import time; time.sleep(600)"]

    supervise(replace(broken, case_s=0.1), journal, command, cap_s=60)

    assert started == [0, 1]
    assert [(record.case, record.status) for record in journal.read()] == [("hung", "failed")]


def test_a_run_ends_where_no_kernel_can_be_compiled(broken: Stage, tmp_path: Path) -> None:
    """If a needed stage has no successful case, the run ends, to give its machine back; one such case is enough."""
    later, needed = replace(broken, name="later"), replace(broken, needed=True)
    for first, stages in (
        (replace(needed, module="bandrank_bench.gpu.gone"), ["run", "broken"]),
        (needed, ["run", "broken", "broken", "later", "later"]),
    ):
        check.main(["--dry", "--out", str(tmp_path / "run.jsonl")], [first, later])
        assert [record.stage for record in Journal(tmp_path / "run.jsonl").read()] == stages
    assert [stage.name for stage in STAGES if stage.needed] == ["compile"]


def test_a_run_goes_on_where_no_kernel_failed_to_compile(
    broken: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVRTC a dry run skips the kernels; a single one is compiled first, in case there is time for no more."""

    def none(*_: object) -> None:
        raise AssemblerNotFound("NVRTC is not installed")

    monkeypatch.setattr(machine, "assemble", none)
    (needed,) = (stage for stage in STAGES if stage.needed)
    check.main(["--dry", "--out", str(tmp_path / "run.jsonl")], [needed, broken])
    records = Journal(tmp_path / "run.jsonl").read()

    assert {(record.stage, record.status) for record in records} >= {("compile", "skipped"), ("broken", "ok")}
    assert [case.name for case in machine.compilations(LAB)].index("all, side by side") == 1


def test_a_process_that_hangs_is_killed(broken: Stage, journal: Journal) -> None:
    sleeps = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    supervise(broken, journal, lambda *_: sleeps, cap_s=0.1, grace_s=0.1)

    assert [(record.case, record.status) for record in journal.read()] == [("killed", "failed")]


def put_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str, code: int = 0) -> None:
    """Puts a program on PATH that prints a text and exits with a code."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{says}\nEOF\nexit {code}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_sanitizers_must_say_that_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, findings and a bad exit code are failures."""
    put_tool(tmp_path, monkeypatch, "compute-sanitizer", "========= ERROR SUMMARY: 0 errors")
    assert watched.sanitized(LAB, "memcheck") == {"errors": 0}
    for said, code in (
        ("", 0),
        ("========= RACECHECK SUMMARY: 2 hazards displayed", 0),
        ("ERROR SUMMARY: 0 errors", 9),
    ):
        put_tool(tmp_path, monkeypatch, "compute-sanitizer", said, code)
        with pytest.raises(RuntimeError):
            watched.sanitized(LAB, "racecheck")


def test_tests_on_a_gpu_must_pass_and_run(tmp_path: Path) -> None:
    """A file whose tests fail, or are all skipped for want of a kernel, is a failure."""
    path = tmp_path / "test_on_gpu.py"
    path.write_text("import atexit\n\ndef test_one(): atexit.register(print, 'a library ends')")
    assert "1 passed" in watched.tested(LAB, path)["tests"]
    for text, reason in (("assert 0", "1 failed"), ("import pytest; pytest.skip('no card')", "no test ran")):
        path.write_text(f"def test_one(): {text}")
        with pytest.raises(RuntimeError, match=reason):
            watched.tested(LAB, path)


def test_what_tools_watch_is_the_kernels() -> None:
    """The launches run to their end; without a GPU they fail, so that no tool finds plain torch in order instead."""
    watched.main([*watched.SMALL], Lab(dry=True))
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):  # torch asserts that it was built for CUDA
            watched.main([*watched.SMALL], LAB)


def test_metrics_are_read_from_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_tool(tmp_path, monkeypatch, "ncu", NCU)
    assert watched.profile(LAB, "any") == {"Duration": "17.5 us"}
    put_tool(tmp_path, monkeypatch, "ncu", "no permission")
    with pytest.raises(RuntimeError, match="no permission"):
        watched.profile(LAB, "any")


def test_records_are_lines_of_json(journal: Journal) -> None:
    """Each case is a line, in their order; a line that is still being written is not read."""
    records = [Record("a", "b", "ok", 1.5, {"us": 2.0}), Record("a", "c", "skipped", facts={"reason": "none"})]
    for record in records:
        journal.write(record)

    assert journal.read() == records
    assert [json.loads(line)["case"] for line in journal.path.read_text().splitlines()] == ["b", "c"]
    assert (journal.of("a"), journal.of("b")) == (records, [])
    with journal.path.open("a") as file:
        file.write('{"stage": "a", "ca')
    assert journal.read() == records
