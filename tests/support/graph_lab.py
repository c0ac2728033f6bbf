"""Graph runners on a recording device, batches for them, and the right scores."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType

import pytest
import torch
from emulation.graphs import LateBranch, RecordingDevice, Running, Stream
from support.layouts import CPU
from support.models import random_ids, random_scorer, score_batch, tiny_encoder_config
from support.tokenizer import CLS_ID, SEP_ID
from torch import Tensor

from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.graphs import MAX_GRAPHS, GraphRunner
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import sparse
from bandrank.models.packed_buckets import MAX_ROWS
from bandrank_kernels.windowed_attention import AttentionPlan, Capacity, PackedRows, interface
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan

# In the order of their imports.
MODULES = (
    "bandrank_kernels.windowed_attention.capacity",
    "bandrank_kernels.windowed_attention.cuda.forward",
    "bandrank_kernels.windowed_attention.cuda.plan",
    "bandrank_kernels.staging",
    "bandrank.models.packed_buckets",
    "bandrank.models.graphs",
)
House = dict[str, ModuleType]
REAL: House = {name: sys.modules[name] for name in MODULES}
# How much the rounding of a row may depend on the rows that are multiplied with it; scores are of the order of 1.
ROUNDING = 1e-5


@cache
def scorer(window: int | None = 4) -> CrossEncoder:
    """A cross-encoder of two layers, the last for [CLS] alone, with heads of a size that has kernels."""
    config = CrossEncoderConfig(
        encoder=replace(tiny_encoder_config(), hidden_size=64, num_heads=2),
        cls_id=CLS_ID,
        sep_id=SEP_ID,
        pattern=sparse(window),
        max_tokens=512,
        max_query_tokens=64,
    )
    return random_scorer(CrossEncoder(config), seed=0).requires_grad_(requires_grad=False)


def packed(queries: Sequence[int], candidates: Sequence[Sequence[int]], seed: int = 0) -> PackedTokens:
    """A packed batch of random texts of these lengths, [SEP] not counted."""
    rng = random.Random(seed)
    batch = score_batch(
        [random_ids(rng, length) for length in queries],
        [[random_ids(rng, length) for length in group] for group in candidates],
    )
    return pack(batch, scorer().config.pattern, cls_id=CLS_ID, sentence_token=None)


# Batches of one bucket, 145 to 176 rows and 9 to 16 candidates: one of candidates of equal length, one of lengths that
# fill no tile or several, one with a query for each candidate, and the one with the most candidates.
ALIKE = [
    packed([5], [[9] * 13], seed=1),
    packed([3, 4], [[75, 0, 1, 2, 0, 0], [40, 1, 2, 3]], seed=2),
    packed([4] * 9, [[10]] * 9, seed=3),
    packed([11], [[7] * 15], seed=4),
]
SMALL = packed([5], [[9, 2]])


@dataclass
class Lab:
    """A graph runner for a scorer with this window, and its device."""

    device: RecordingDevice
    runner: GraphRunner[PackedTokens]
    window: int | None

    @classmethod
    def of(
        cls,
        house: House = REAL,
        *,
        running: Running = "at once",
        window: int | None = 4,
        max_rows: int = MAX_ROWS,
        max_graphs: int = MAX_GRAPHS,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Lab":
        device = RecordingDevice(running)
        plan_class = house["bandrank_kernels.windowed_attention.cuda.plan"].CudaPlan

        def plan(rows: PackedRows, capacity: Capacity) -> AttentionPlan:
            return plan_of(plan_class, device, rows, window, capacity)

        packing = house["bandrank.models.packed_buckets"]
        packing.Capacity = house[MODULES[0]].Capacity
        buckets = packing.PackedBuckets(scorer(window).compute, plan, max_rows=max_rows)
        runner = house["bandrank.models.graphs"].GraphRunner(buckets, device, max_graphs=max_graphs, clock=clock)
        return cls(device, runner, window)

    def score(self, batch: PackedTokens) -> Tensor:
        scores = self.runner.compute(batch)
        assert scores is not None
        return scores

    def right_on_two_streams(self) -> list[bool]:
        """Whether the scores of two batches are right when the device works on their streams in turns."""
        other = Stream()
        self.score(ALIKE[0])
        self.device.running = "late"
        first = self.score(ALIKE[1])
        with self.device.on(other):
            second = self.score(ALIKE[2])
        self.device.alternate(other)
        return [is_right(first, expected(1)), is_right(second, expected(2))]


def plan_of(
    plan_class: type[CudaPlan],
    device: RecordingDevice,
    rows: PackedRows,
    window: int | None,
    capacity: Capacity | None = None,
) -> CudaPlan:
    """The plan for float32 on a card with tensor cores, whose launches `device` records."""
    return plan_class(
        rows,
        sparse(window),
        device=CPU,
        dtype=torch.float32,
        head_dim=32,
        capability=(8, 0),
        capacity=capacity,
        run=device.launch,
    )


@torch.inference_mode()
def launched(batch: PackedTokens, window: int | None = 4) -> Tensor:
    """The scores of a batch that is launched without bucket and graph."""
    plan = plan_of(CudaPlan, RecordingDevice(), batch.rows, window)
    return scorer(window).compute(PackedInputs.of(batch, plan, CPU))


@cache
def expected(number: int, window: int | None = 4) -> Tensor:
    """The right scores of a batch of `ALIKE`."""
    return launched(ALIKE[number], window)


def serve_from(device: RecordingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `prepare` act as if it had found a card with tensor cores, and launch on `device`."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # a GPU has no such layout of weights
    monkeypatch.setattr(interface, "cuda_obstacle", lambda _: None)
    monkeypatch.setattr(interface, "choose_backend", lambda *_, **__: "cuda")
    monkeypatch.setattr(interface, "device_capability", lambda _: (8, 0))
    monkeypatch.setattr(interface, "CudaPlan", partial(CudaPlan, run=device.launch))
    monkeypatch.setattr("bandrank.models.prepared.why_not_bfloat16", lambda _: "those kernels are for a CPU")
    monkeypatch.setattr("bandrank.models.cached_buckets.Branch", lambda _: LateBranch(device))
    monkeypatch.setattr("bandrank.models.backends.why_distrusted", lambda *_, **__: None)  # there is no card to try


def is_right(actual: Tensor, right: Tensor) -> bool:
    """Whether scores are equal up to the rounding of products."""
    return actual.shape == right.shape and bool(((actual - right).abs() <= ROUNDING).all())
