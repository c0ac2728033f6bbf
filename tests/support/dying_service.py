"""The service with a scoring thread that dies as soon as it has taken a batch: `python -m support.dying_service serve`.

Only the first batches, among them that of the self-test, are scored. The service has to be changed from inside, because
nothing that a client sends can end the thread.
"""

import sys
from itertools import count

from support.working import Dies

from bandrank.__main__ import main
from bandrank.engine.worker import ScoringWorker

SCORED = 5
CALLS_A_BATCH = 2  # before a batch begins, and after it


def dies_between_batches() -> None:
    """Makes the scoring thread die once it has scored `SCORED` batches."""
    finish, calls = ScoringWorker._finish_all_but, count()

    def finish_or_die(self: ScoringWorker, last: int) -> None:
        if next(calls) >= SCORED * CALLS_A_BATCH:
            raise Dies
        finish(self, last)

    ScoringWorker._finish_all_but = finish_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    dies_between_batches()
    sys.exit(main())
