"""Measures who used the processors: the generator, the service, or others on the machine. Linux only."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Busy:
    """Processor seconds since some moment, or, divided by seconds, processors in use.

    others: all other processes, and what other machines on the same host took.
    """

    generator: float
    service: float
    others: float

    @classmethod
    def read(cls, service_pid: int | None) -> Self:
        """Reads the processor seconds until now. service_pid: the service's only process; None: on another machine."""
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _wait, interrupts, soft, stolen = map(
            int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        generator, service = time.process_time(), 0.0
        if service_pid is not None:
            # The program's name, in brackets, may contain anything.
            fields = Path(f"/proc/{service_pid}/stat").read_text().rpartition(")")[2].split()
            service = (int(fields[11]) + int(fields[12])) * tick_s
        everybody = (user + nice + system + interrupts + soft + stolen) * tick_s
        return cls(generator, service, everybody - generator - service)

    def since(self, before: Self, seconds: float) -> "Busy":
        """The average number of processors in use between two readings `seconds` apart."""
        return Busy(
            (self.generator - before.generator) / seconds,
            (self.service - before.service) / seconds,
            max(0.0, (self.others - before.others) / seconds),  # the clocks' resolutions differ
        )
