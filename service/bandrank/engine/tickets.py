"""A request's place among the others, from its admission to its last score."""

from dataclasses import dataclass

from bandrank.engine.clients import Client


@dataclass(eq=False)
class Ticket:
    """Whom a request is from, when it is due, and its turn, which all its tasks share.

    deadline: monotonic seconds.  turn: among the requests of its client; None until it is admitted.
    expected_cost, expected_s: work that is to come and is not queued yet.  promised: whether what it needs
    further is refused only if it would be late.
    """

    client: Client
    deadline: float
    turn: float | None = None
    expected_cost: float = 0.0
    expected_s: float = 0.0
    promised: bool = False
