"""How long the batches that are being computed should still take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.tasks import CLIENT, task_of
from support.working import open_queue, work_off

from bandrank.engine.tasks import AnySlice, Outcomes
from bandrank.engine.tickets import Ticket
from bandrank.models.arriving import Arriving


@dataclass(frozen=True, eq=False)
class ZeroLane:
    """A lane whose results are 0."""

    name: str
    overlaps: bool
    row_cost: float = 1.0

    def begin(self, slices: Sequence[AnySlice]) -> Outcomes[Any]:
        return Arriving(lambda: [[0.0] * len(part) for part in slices])


@pytest.mark.parametrize("overlaps", [[False], [True], [True, True], [True, False]])
def test_a_batch_that_has_ended_delays_nobody(overlaps: list[bool]) -> None:
    """It was expected to take much longer. As soon as a request has its results, it may put its next task: before the
    thread comes back for another batch. One that is behind it counts.
    """
    lanes = [ZeroLane(f"lane {number}", each) for number, each in enumerate(overlaps)]
    tasks = [task_of([1.0], lane=lane) for lane in lanes]
    queue = open_queue(*tasks)
    waits: list[float] = []
    for lane, task in zip(lanes, tasks, strict=True):
        queue.throughput.report(lane.name, 1, 100.0)
        task.future.add_done_callback(lambda _: waits.append(queue.wait_s(Ticket(CLIENT, math.inf), 1.0)))
    work_off(queue, max_batch_rows=1)

    assert waits == [*[100.0] * (len(overlaps) - 1), 0.0]
