"""Limits torch's threads to the number of processors that the process may use at once.

torch counts the processors that the process may run on. If control groups limit its CPU time as well
(`docker run --cpus`, Kubernetes limits), that many threads would use up the quota early in each period, and all of them
would then stall until the next one.
"""

import logging
import math
import os
from contextlib import suppress
from pathlib import Path

import torch

from bandrank.control_groups import GROUPS, MOUNTS, folders

THREADS = "OMP_NUM_THREADS"  # if it is set, it decides

log = logging.getLogger(__name__)


def limit_threads() -> None:
    """Gives torch no more threads than there are processors to use, unless the environment says how many."""
    wanted, usable = torch.get_num_threads(), usable_processors()
    if usable < wanted and THREADS not in os.environ:
        log.info("%d threads instead of %d, because control groups limit the time of processors", usable, wanted)
        torch.set_num_threads(usable)


def usable_processors() -> int:
    """The processors that the process may run on, at most the CPU quota of its control groups, rounded up."""
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), quota())))


def quota(groups: Path = GROUPS, mounts: Path = MOUNTS) -> float:
    """The tightest CPU quota of the process's control groups, of either version, in processors; inf without a limit.

    groups, mounts: as in `control_groups.folders`.
    """
    found = folders("cpu", groups, mounts)
    quotas = (_of_version_2(folder) if version == 2 else _of_version_1(folder) for version, folder in found)
    return min(quotas, default=math.inf)


def _of_version_2(folder: Path) -> float:
    with suppress(OSError, ValueError):
        time_us, period_us = (folder / "cpu.max").read_text(encoding="ascii").split()
        return int(time_us) / int(period_us)  # "max" is not a number
    return math.inf


def _of_version_1(folder: Path) -> float:
    with suppress(OSError, ValueError):
        time_us = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        if time_us > 0:  # -1: no limit
            return time_us / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
    return math.inf
