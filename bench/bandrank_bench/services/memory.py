"""The memory that a process holds. Linux only."""

from dataclasses import dataclass
from typing import Self

from bandrank_bench.proc import sizes

MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Memory in MiB. resident: all pages.  proportional: shared pages by their share.  peak: the most ever resident."""

    resident: float
    proportional: float
    peak: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """The memory of a process now. Each service here runs in one process."""
        rollup, status = sizes(pid, "smaps_rollup"), sizes(pid, "status")
        return cls(rollup["Rss"] / MIB, rollup["Pss"] / MIB, status["VmHWM"] / MIB)
