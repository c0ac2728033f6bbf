"""How many threads compute where control groups limit CPU time."""

import math
from pathlib import Path

import pytest
import torch

from bandrank import cpus
from bandrank.cpus import limit_threads, quota


def files(top: Path, contents: dict[str, str]) -> Path:
    """Writes the files below a folder and returns the folder."""
    for name, content in contents.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n", encoding="ascii")
    return top


@pytest.mark.parametrize(
    ("groups", "contents", "expected"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),  # a container with groups of its own
        ("0::/", {"cpu.max": "max 100000"}, math.inf),
        ("0::/", {}, math.inf),  # the group at the very top has no such file
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "max 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000", "a/cpu.max": "200000 100000"}, 0.5),
        ("0::/kubepods/pod1", {"cpu.max": "300000 100000"}, 3),  # named as the host sees it, with the files at the top
        (
            "4:cpu,cpuacct:/a\n0::/",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        ("4:memory:/\n1:cpu:/docker/1", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("1:cpuset:/", {"cpuset/cpu.cfs_quota_us": "1", "cpuset/cpu.cfs_period_us": "1"}, math.inf),
    ],
)
def test_what_control_groups_give(tmp_path: Path, groups: str, contents: dict[str, str], expected: float) -> None:
    """The quota is the smallest of the process's control groups and the groups above them, in versions 1 and 2."""
    listed = files(tmp_path, {"groups": groups}) / "groups"

    assert quota(listed, files(tmp_path / "mounts", contents)) == expected


def test_without_control_groups(tmp_path: Path) -> None:
    """A kernel built without control groups gives no limit."""
    assert quota(tmp_path / "none", tmp_path) == math.inf


@pytest.mark.parametrize(
    ("given", "chosen", "expected"), [(1.5, None, 2), (0.1, None, 1), (math.inf, None, 3), (1, "3", 3)]
)
def test_torch_has_as_many_threads(
    monkeypatch: pytest.MonkeyPatch, given: float, chosen: str | None, expected: int
) -> None:
    """The quota is rounded up to whole threads, but a number set in OMP_NUM_THREADS stays."""
    monkeypatch.setattr(cpus, "quota", lambda: given)
    monkeypatch.setattr(cpus.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        limit_threads()
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
