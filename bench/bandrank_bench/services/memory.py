"""What a process holds of the memory. Linux alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

MIB_OF_KIB = 1 / 1024


@dataclass(frozen=True)
class Memory:
    """In MiB. resident: all pages.  proportional: shared pages by their share.  peak: the most that was resident."""

    resident: float
    proportional: float
    peak: float

    @classmethod
    def of(cls, pid: int) -> Self:
        """Of a process, now. Services here run in one process each."""
        rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
        return cls(rollup["Rss"], rollup["Pss"], _fields(Path(f"/proc/{pid}/status"))["VmHWM"])


def _fields(path: Path) -> dict[str, float]:
    """The values of a file that are in kB, in MiB."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * MIB_OF_KIB for words in lines if words[-1:] == ["kB"]}
