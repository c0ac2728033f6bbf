"""The service with a scoring thread that dies as soon as it has taken a batch: `python -m support.dying_service serve`.

Only the first batches, among them that of the self-test, are scored. It has to be done from inside, for nothing that a
client sends brings it about.
"""

import sys
from itertools import count

from bandrank.__main__ import main
from bandrank.engine.worker import ScoringWorker

SCORED = 5
CALLS_A_BATCH = 2  # before it begins, and after


class Died(BaseException):
    """Ends the scoring thread."""


def dies_between_batches() -> None:
    """Lets the scoring thread die after some batches."""
    finish, calls = ScoringWorker._finish_all_but, count()

    def finish_or_die(self: ScoringWorker, last: int) -> None:
        if next(calls) >= SCORED * CALLS_A_BATCH:
            raise Died
        finish(self, last)

    ScoringWorker._finish_all_but = finish_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    dies_between_batches()
    sys.exit(main())
