"""Who used the processors: the generator, the service, or somebody else on the machine. Linux alone."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Busy:
    """Processor seconds since some moment; divided by seconds, processors.

    others: of all processes but the generator's and the service's, and what other machines on the same host took.
    """

    generator: float
    service: float
    others: float

    @classmethod
    def read(cls, service_pid: int | None) -> Self:
        """Until now. service_pid: of the service, in whose threads all its work is done; None: it is elsewhere."""
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _wait, interrupts, soft, stolen = map(
            int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
        )
        generator, service = time.process_time(), 0.0
        if service_pid is not None:
            # The name of the program, in brackets, may hold anything.
            fields = Path(f"/proc/{service_pid}/stat").read_text().rpartition(")")[2].split()
            service = (int(fields[11]) + int(fields[12])) * tick_s
        everybody = (user + nice + system + interrupts + soft + stolen) * tick_s
        return cls(generator, service, everybody - generator - service)

    def since(self, before: Self, seconds: float) -> "Busy":
        """The processors that were in use on average between two readings, `seconds` apart."""
        return Busy(
            (self.generator - before.generator) / seconds,
            (self.service - before.service) / seconds,
            max(0.0, (self.others - before.others) / seconds),  # clocks of different grain
        )
