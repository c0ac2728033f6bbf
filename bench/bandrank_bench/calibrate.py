"""Takes samples that no slow phase of the machine has touched.

Shared machines run 1.5 to 3 times slower for seconds at a time, and nothing in /proc shows it. So a matrix product of
known cost is timed right before and right after each sample; the sample counts if neither took much longer than the
fastest tenth of all (the very fastest may be a burst that no sample is ever given). A slow phase is waited out for a
while before a sample is taken. Systems take turns in random order, so that a drift of the machine meets them all.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from bandrank_bench.output import say

TOLERANCE = 1.2
MAX_ROUNDS_FACTOR = 3  # more rounds for systems that lack clean samples, up to this many times those asked for
SETTLE_S = 0.06  # threads of ONNX Runtime and OpenMP spin for a while after a run, and would slow the next call
CALM_TRIES = 20  # about three seconds of a slow phase are waited out before a sample, rather than spoil it
GEMM_SIZE = 2048

Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """One timed call, and the calibration product before and after it; all in seconds."""

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


def clean(samples: Sequence[Sample], calm_s: float) -> list[Sample]:
    """The samples with both calibrations within TOLERANCE of the calm speed of the run."""
    return [sample for sample in samples if max(sample.before_s, sample.after_s) <= TOLERANCE * calm_s]


class Calibration:
    """Times the product of known cost, and knows its time when the machine is calm.

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
        self.time()  # the first one pays for pages and threads; should it yet be the best, it was clean

    @property
    def calm_s(self) -> float:
        """The longest time among the fastest tenth of the products."""
        return sorted(self._times)[len(self._times) // 10]

    def describe(self) -> str:
        """The calm and the fastest time, which differ on a shared machine: a calm sample may still be contended."""
        return f"{self.calm_s * 1e3:.0f} ms when calm, {min(self._times) * 1e3:.0f} ms at its fastest"

    def await_calm(self) -> float:
        """Seconds of the first product within TOLERANCE of the calm ones, or of the last of CALM_TRIES."""
        for _ in range(CALM_TRIES):
            seconds = self.time()
            if seconds <= TOLERANCE * self.calm_s:
                break
        return seconds

    def time(self) -> float:
        """Seconds of one product, once the threads of earlier calls have settled."""
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
    seed: int = 0,
) -> list[Sample]:
    """Samples of every system on the same requests, one request a round.

    The systems of a group run one right after the other, so that they can be compared sample by sample; groups, and
    the systems in a group, take turns in random order. A group takes part until it has `rounds` rounds that are clean
    for all its systems, or gives up after MAX_ROUNDS_FACTOR * rounds.
    Returns all samples: which of them are clean is known only at the end of the run.
    """
    rng = random.Random(seed)
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
    """The rounds in which each of the systems has a sample in `kept`."""
    return set.intersection(*({sample.round_number for sample in kept if sample.system == name} for name in names))


def _float32_product() -> Callable[[], object]:
    # float32: it runs natively on every CPU, so that its time says how fast the machine is and nothing else.
    matrix = torch.randn(GEMM_SIZE, GEMM_SIZE, generator=torch.Generator().manual_seed(0))
    return lambda: torch.mm(matrix, matrix)
