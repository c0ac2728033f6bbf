"""The stage of the check for GPUs that measures the service, run on the CPU, and without the service's libraries."""

from pathlib import Path

import pytest

from bandrank_bench.gpu import check, report, service
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import STAGES, Journal, run_stage

(STAGE,) = (stage for stage in STAGES if stage.name == "service")


@pytest.mark.slow
def test_the_service_is_started_asked_and_stopped(tmp_path: Path) -> None:
    """Every case succeeds, every request is answered, and the numbers become a table. At last two services answer."""
    out = tmp_path / "run.jsonl"
    check.main(["--dry", "--out", str(out)], [STAGE])
    _, *records = Journal(out).read()
    start, *others, end = records
    loads = [record for record in others if "answers/s" in record.facts]
    memory = "MiB of processes at their peak"

    assert {record.status for record in records} == {"ok"}
    assert start.facts["log"]["ready"][0] <= start.facts["s until ready"]
    assert {record.facts["not answered in time"] for record in loads} == {0.0}
    assert report.service(records).count("answers/s") == len(loads) == 2 * len(service.DRY_LOADS)
    assert end.facts[memory] > 1.5 * start.facts[memory]


def test_without_its_libraries_the_stage_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(service, "NEEDED", ("json", "no_such_library"))
    journal = Journal(tmp_path / "run.jsonl")
    run_stage(STAGE, Lab(dry=True), journal, cap_s=10)
    first, *others = journal.read()

    assert first.facts["reason"] == "not installed: no_such_library"
    assert {record.facts["reason"] for record in others} == {"the service is not running"}


def test_means_are_of_what_was_observed_between_two_scrapes() -> None:
    """By hand: two more batches, of 6 requests together; what was observed before has no mean."""
    idle = {"cache_seconds_sum": 1.0, "cache_seconds_count": 2.0}

    assert service.means(
        {"batch_tasks_sum": 4.0, "batch_tasks_count": 4.0, **idle},
        {"batch_tasks_sum": 10.0, "batch_tasks_count": 6.0, **idle},
    ) == {"batch_tasks": 3.0}
