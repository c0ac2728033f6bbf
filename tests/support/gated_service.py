"""The real service with a tiny scorer that the test can hold up: `python -m support.gated_service serve ...`.

Two pipes lead to the test. For each batch the scorer writes a byte to the first and then waits for one from the
second: DIE ends the scoring thread, any other byte and the pipe's end let the batch through.
"""

import os
import sys

from support.scorers import WatchedScorer, lookup
from support.serving import files_of
from support.working import Dies

from bandrank import logs
from bandrank.commands import serve
from bandrank.models.batch import ScoreBatch
from bandrank.settings import Settings
from bandrank.stops import ended_by_signals

ARRIVED_FD, PASSES_FD = "GATE_ARRIVED_FD", "GATE_PASSES_FD"  # environment variables that name the pipes
PASS, DIE = b"p", b"d"


def main() -> int:
    arrived, passes = int(os.environ[ARRIVED_FD]), int(os.environ[PASSES_FD])

    def wait(_: ScoreBatch) -> None:
        os.write(arrived, b".")
        if os.read(passes, 1) == DIE:
            raise Dies

    settings = Settings.read(sys.argv[2:])
    logs.configure(settings.log_level, settings.log_format)
    with ended_by_signals():
        return serve([files_of(WatchedScorer(lookup(man=1.5, she=-2.0), wait))], settings)


if __name__ == "__main__":
    sys.exit(main())
