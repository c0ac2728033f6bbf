"""What a process holds of the memory. Linux alone."""

from dataclasses import dataclass
from typing import Self

from bandrank_bench.proc import sizes

MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """In MiB. resident: all pages.  proportional: shared pages by their share.  peak: the most that was resident."""

    resident: float
    proportional: float
    peak: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Of a process, now. Services here run in one process each."""
        rollup, status = sizes(pid, "smaps_rollup"), sizes(pid, "status")
        return cls(rollup["Rss"] / MIB, rollup["Pss"] / MIB, status["VmHWM"] / MIB)
