"""Mistakes planted in the graph runner, its staging and its plans; each is noticed in some order of a device's work."""

from collections.abc import Callable, Sequence

import pytest
from emulation.compiled import EmulationError, needs_compiler
from emulation.mistakes import Mistake, plant_in_modules
from support.graph_lab import ALIKE, MODULES, SMALL, House, Lab, expected, is_right, launched

pytestmark = needs_compiler


def survives(house: House) -> bool:
    """Returns whether a runner made of these modules scores batches correctly in each way that a device may run."""

    def buckets_are_apart() -> bool:
        lab = Lab.of(house)
        return is_right(lab.score(SMALL), launched(SMALL)) and is_right(lab.score(ALIKE[0]), expected(0))

    def all_right(lab: Lab, numbers: Sequence[int]) -> bool:
        found = [lab.score(ALIKE[number]) for number in numbers]
        lab.device.drain()
        return all(is_right(scores, expected(n, lab.window)) for scores, n in zip(found, numbers, strict=True))

    trials: list[Callable[[], bool]] = [
        lambda: all_right(Lab.of(house), (0, 1, 2, 3)),
        lambda: all_right(Lab.of(house, running="late"), (3, 1, 2, 0)),
        lambda: all_right(Lab.of(house, window=None), (0, 1)),
        lambda: all(Lab.of(house).right_on_two_streams()),
        buckets_are_apart,
    ]
    try:
        return all(trial() for trial in trials)
    except (EmulationError, ValueError, RuntimeError, IndexError):
        return False


MISTAKES = [
    # Inputs that are not refilled or are read from elsewhere; results that the next batch overwrites.
    Mistake("refill", "pass"),
    Mistake("bind", "plan"),
    Mistake("results", "results = found"),
    # Sizes of the batch instead of the bucket's; different buckets under one key; padding rows at the wrong end.
    Mistake("capacity-tiles", "None"),
    Mistake("capacity-cls-tiles", "None"),
    Mistake("most-tiles", "self.num_rows // tile_rows + self.num_candidates // 2"),
    Mistake("bucket", "$[:2]"),
    Mistake("bucket", "$[2]"),
    Mistake("padding", "torch.from_numpy(np.roll(batch.padded, 8, 1))"),
    # Missing waits: the host for its buffer, a batch for the one before.
    Mistake("host-buffer", "pass"),
    Mistake("host-read", "pass"),
    Mistake("idle-wait", "pass"),
    Mistake("idle-record", "pass"),
]


def test_without_a_mistake_all_is_right() -> None:
    """Without a mistake every trial passes, so what fails below is due to the mistakes."""
    assert survives(plant_in_modules(MODULES, None))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.marker}: {mistake.instead}")
def test_a_mistake_is_noticed(mistake: Mistake) -> None:
    assert not survives(plant_in_modules(MODULES, mistake))
