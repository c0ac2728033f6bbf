"""A request's place among the others, from its admission to its last score."""

import math
from dataclasses import dataclass

from bandrank.engine.clients import Client


@dataclass(eq=False)
class Ticket:
    """A request's client, deadline and turn, which all its tasks share.

    deadline: monotonic seconds.  priority: from 0; a later one lets other requests of its client go first.
    turn: among the requests of its client; None until it is admitted.  expected_cost, expected_s: work yet to be
    queued.  num_scorings: the number of tasks with a query in it, if it is known.  promised: whether further work is
    refused only if it would be late.
    """

    client: Client
    deadline: float
    priority: int = 0
    turn: float | None = None
    expected_cost: float = 0.0
    expected_s: float = 0.0
    num_scorings: int = 0
    promised: bool = False

    @property
    def deference(self) -> float:
        """How many times its own work the request lets smaller requests of its client go first.

        It grows with the priority, but slowly, so that no request starves: 1 for a priority of 0, 2 for 1, 11 for 999.
        """
        return 1 + math.log2(1 + self.priority)

    def queued(self, cost: float, seconds: float, *, scores: bool) -> None:
        """Takes a task off the expected work; with the last scoring all: the rest was cached or estimated too high."""
        self.num_scorings -= scores
        if scores and self.num_scorings == 0:
            cost = seconds = math.inf
        self.expected_cost = max(0.0, self.expected_cost - cost)
        self.expected_s = max(0.0, self.expected_s - seconds)
