"""How long the batches that are being computed should still take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.tasks import CLIENT, NamedLane, task_of
from support.working import open_queue, work_off

from bandrank.engine.tasks import AnySlice, Outcomes
from bandrank.engine.tickets import Ticket
from bandrank.models.arriving import Arriving


@dataclass(frozen=True, eq=False)
class ZeroLane(NamedLane):
    """A lane whose results are 0."""

    overlaps: bool = False

    def begin(self, slices: Sequence[AnySlice]) -> Outcomes[Any]:
        return Arriving(lambda: [[0.0] * len(part) for part in slices])


@pytest.mark.parametrize("overlaps", [[False], [True, True], [True, False]])
def test_a_batch_that_has_ended_delays_nobody(overlaps: list[bool]) -> None:
    """A request with results may put its next task before the thread comes back. A batch behind counts."""
    lanes = [ZeroLane(f"{number}", overlaps=each) for number, each in enumerate(overlaps)]
    tasks = [task_of([1.0], lane=lane) for lane in lanes]
    queue = open_queue(*tasks)
    waits: list[float] = []
    for lane, task in zip(lanes, tasks, strict=True):
        queue.throughput.report(lane.name, 1, 100.0)
        task.future.add_done_callback(lambda _: waits.append(queue.wait_s(Ticket(CLIENT, 0.0), 1.0)))
    work_off(queue, max_batch_rows=1)

    assert waits == [*[100.0] * (len(overlaps) - 1), 0.0]
