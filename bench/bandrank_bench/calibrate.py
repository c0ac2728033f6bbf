"""Takes samples that are free of the machine's slow phases.

Shared machines run 1.5 to 3 times slower for seconds at a time, and nothing in /proc shows it. So a matrix product of
known cost is timed right before and right after each sample; the sample counts if neither took much longer than the
fastest tenth of all products (the very fastest may be a rare burst). Before a sample, slow phases are waited out for a
while. Systems take turns in random order, so that a drift of the machine affects all of them.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from bandrank_bench.output import say

TOLERANCE = 1.2
MAX_ROUNDS_FACTOR = 3  # limit of extra rounds for systems that lack clean samples
SETTLE_S = 0.06  # threads of ONNX Runtime and OpenMP spin for a while after a run, and would slow the next call
CALM_TRIES = 20  # wait out about three seconds of a slow phase rather than spoil a sample
GEMM_SIZE = 2048

Item = TypeVar("Item")


class Calibrated(Protocol):
    """What was measured between two calibration products, which took `before_s` and `after_s`."""

    @property
    def before_s(self) -> float: ...

    @property
    def after_s(self) -> float: ...


Measured = TypeVar("Measured", bound=Calibrated)


@dataclass(frozen=True)
class Sample:
    """A timed call, and the calibration products before and after it; all in seconds."""

    workload: str
    system: str
    round_number: int
    tokens: int
    seconds: float
    before_s: float
    after_s: float

    @property
    def us_per_token(self) -> float:
        """Microseconds per token of the full pairs."""
        return self.seconds / self.tokens * 1e6


def clean(samples: Iterable[Measured], calm_s: float) -> list[Measured]:
    """The samples with both calibrations within TOLERANCE of the calm speed of the run."""
    return [sample for sample in samples if max(sample.before_s, sample.after_s) <= TOLERANCE * calm_s]


class Calibration:
    """Times the product of known cost, and keeps track of its time on a calm machine.

    `clock` is in seconds; `settle_s` passes before each product.
    """

    def __init__(
        self,
        product: Callable[[], object] | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._product = product or _float32_product()
        self.clock = clock
        self._settle_s = settle_s
        self._times: list[float] = []
        self.time()  # a warm-up, which does no harm in the list

    @property
    def calm_s(self) -> float:
        """The longest time among the fastest tenth of the products."""
        return sorted(self._times)[len(self._times) // 10]

    def describe(self) -> str:
        """States the calm and the fastest time. They differ on shared machines: calm samples may still be contended."""
        return f"{self.calm_s * 1e3:.0f} ms when calm, {min(self._times) * 1e3:.0f} ms at its fastest"

    def await_calm(self) -> float:
        """Repeats the product until it is within TOLERANCE of calm, or CALM_TRIES times; returns its seconds."""
        for _ in range(CALM_TRIES):
            seconds = self.time()
            if seconds <= TOLERANCE * self.calm_s:
                break
        return seconds

    def time(self) -> float:
        """Times one product, in seconds, after the threads of earlier calls have settled."""
        self.settle()
        started = self.clock()
        self._product()
        seconds = self.clock() - started
        self._times.append(seconds)
        return seconds

    def settle(self) -> None:
        """Lets spinning threads go to sleep."""
        time.sleep(self._settle_s)


def take_turns(
    groups: Sequence[Mapping[str, Callable[[Item], object]]],
    request: Callable[[int], Item],
    *,
    workload: str,
    rounds: int,
    calibration: Calibration,
    tokens: Callable[[Item], int],
) -> list[Sample]:
    """Takes samples of every system on the same requests, one request per round.

    The systems of a group run back to back, so that they can be compared sample by sample. Groups, and the systems in a
    group, take turns in random order. A group takes part until it has `rounds` rounds that are clean for all its
    systems, or gives up after MAX_ROUNDS_FACTOR * rounds.
    Returns all samples, because only the end of the run shows which are clean.
    """
    rng = random.Random(0)
    samples: list[Sample] = []
    for round_number in range(MAX_ROUNDS_FACTOR * rounds):
        kept = clean(samples, calibration.calm_s)
        lacking = [dict(group) for group in groups if len(clean_rounds(kept, group)) < rounds]
        if not lacking:
            break
        turns = [
            turn for group in rng.sample(lacking, len(lacking)) for turn in rng.sample(list(group.items()), len(group))
        ]
        say(f"{workload} round {round_number}: {len(turns)} systems")
        item = request(round_number)
        for name, run in turns:
            before_s = calibration.await_calm()
            calibration.settle()
            started = calibration.clock()
            run(item)
            seconds = calibration.clock() - started
            after_s = calibration.time()
            samples.append(
                Sample(workload, name, round_number, tokens(item), seconds, before_s=before_s, after_s=after_s)
            )
    return samples


def clean_rounds(kept: Sequence[Sample], names: Iterable[str]) -> set[int]:
    """The rounds in which every system has a sample in `kept`."""
    return set.intersection(*({sample.round_number for sample in kept if sample.system == name} for name in names))


def _float32_product() -> Callable[[], object]:
    # float32 is native on every CPU, so its time depends on nothing but the speed of the machine.
    matrix = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=torch.Generator().manual_seed(0))
    return lambda: torch.mm(matrix, matrix)
