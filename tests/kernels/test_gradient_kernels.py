"""The backward kernels of windowed attention, run on the CPU: the gradients of the reference, to rounding."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from emulation.compiled import SCHEDULES, Schedule, needs_compiler
from emulation.launches import emulate, prepare
from emulation.mistakes import Mistake, assert_noticed, plant
from support.layouts import CPU, packed_rows
from torch import Tensor

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.launch import Kernel
from bandrank_kernels.windowed_attention import AttentionPattern, PackedRows, plan_attention
from bandrank_kernels.windowed_attention.cuda.gradient import GradientPlan, plan_tables
from bandrank_kernels.windowed_attention.cuda.variants import GRADIENT_PARTS, Gradient, GradientPart
from bandrank_kernels.windowed_attention.reference import dense_mask

pytestmark = needs_compiler

FLOAT_BAR = 3e-6  # ||actual - exact|| / ||exact|| that sums in float32 may add
VARIANTS: list[tuple[Dtype, int]] = [("float32", 32), ("float16", 64), ("bfloat16", 32), ("float32", 64)]
WINDOWS = [0, 1, 3, 4, 9, 16, 31, 64, None]
LENGTHS = [0, 1, 2, 15, 16, 30, 31, 32, 33, 60, 61, 62, 63, 64, 65, 93, 94, 124, 130]
QUERIES = [0, 1, 2, 11, 14, 15, 16, 17, 30, 31, 32, 33, 63, 64, 70]
Shape = tuple[int | None, tuple[int, ...], tuple[tuple[int, ...], ...], int]


def shapes() -> Iterator[Shape]:
    """Yields the window, the rows of each query, the rows of its candidates, and the number of heads."""
    for index, length in enumerate(LENGTHS):
        yield WINDOWS[index % 9], (5,), ((length,),), 2
        yield WINDOWS[(index + 4) % 9], (3,), ((length, 7),), 1
    for index, query in enumerate(QUERIES):
        yield WINDOWS[(2 * index) % 9], (query,), ((33, 20),), 1
    for window in WINDOWS:
        yield window, (11, 0, 3, 1), ((40, 0, 17), (5, 33), (), (64, 1)), 2
    for window in (20, 64, 128):
        yield window, (11,), ((300,),), 1
    yield 4, (11,), ((4086,),), 1
    yield 4, (5,), ((0, 0, 0),), 3
    yield 4, (3, 4), ((), ()), 1
    yield 4, (0,), ((9,),), 5


CASES = [(shape, *VARIANTS[index % 4]) for index, shape in enumerate(shapes())]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare(*(Gradient(*variant, part).kernel for variant in VARIANTS for part in GRADIENT_PARTS))


class Layer:
    """One layer's backward pass: inputs in a dtype, and the exact gradient for them."""

    def __init__(self, rows: PackedRows, window: int | None, dtype: Dtype, *, num_heads: int, head_dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        kind: torch.dtype = getattr(torch, dtype)
        shape = rows.num_rows, 3, num_heads, head_dim
        self.qkv = torch.randn(shape, generator=generator).to(kind)
        self.towards = torch.randn(shape[0], *shape[2:], generator=generator).to(kind)
        exact = self.qkv.double().requires_grad_()
        pattern = AttentionPattern.sparse(window)
        plan = plan_attention(rows, pattern, device=CPU, dtype=torch.float64, head_dim=head_dim, backend="reference")
        out, towards = plan.attend(exact), self.towards.double()
        (self.right,) = torch.autograd.grad(out, exact, towards)
        self.out = out.detach().to(kind).contiguous()
        query, key, value = exact.detach().unbind(1)
        scores = torch.einsum("ihd,jhd->hij", query, key) * head_dim**-0.5
        scores.masked_fill_(~dense_mask(rows, pattern), -torch.inf)
        self.lse = (scores.logsumexp(-1).T / math.log(2)).float().contiguous()
        # The backward pass is given a rounded output, and rounds its result: no kernel can be closer than this.
        shares, along = scores.softmax(-1), (towards * self.out.double()).sum(-1).T
        of_scores = shares * (torch.einsum("ihd,jhd->hij", towards, value) - along[..., None]) * head_dim**-0.5
        by_query = torch.einsum("hij,jhd->ihd", of_scores, key)
        by_key, by_value = (torch.einsum("hij,ihd->jhd", *pair) for pair in ((of_scores, query), (shares, towards)))
        closest = torch.stack([by_query, by_key, by_value], 1)
        self.bar = 1.05 * self.errors(closest.to(kind)) + FLOAT_BAR * norms(self.right)
        longest = int(np.diff(rows.cu_candidates).max(initial=0))
        width = longest if window is None else min(window, longest)
        self.plan = GradientPlan(dtype, head_dim, num_heads, width, plan_tables(rows, Gradient.tile_rows))

    def run(
        self,
        schedule: Schedule = "depth first",
        seed: int = 0,
        kernels: tuple[Kernel | None, Kernel | None] = (None, None),
    ) -> Tensor:
        """Returns the kernels' result; all that they write starts as NaN. kernels: used in place of the plan's."""
        tables = self.plan.tables
        result = torch.full_like(self.qkv, torch.nan)
        launches = self.plan.launches(
            self.towards,
            self.qkv,
            self.out,
            self.lse,
            result=result,
            delta=torch.full_like(self.lse, torch.nan),
            partials=torch.full((self.plan.num_partials,), torch.nan),
            tiles=torch.from_numpy(tables.tiles),
            first_vectors=torch.from_numpy(tables.first_vectors),
            totals=torch.from_numpy(tables.totals),
        )
        for launch, kernel in zip(launches, kernels, strict=True):
            emulate(replace(launch, kernel=kernel or launch.kernel), schedule, seed)
        return result

    def errors(self, actual: Tensor) -> Tensor:
        """Returns (3,) errors of the gradients of queries, keys and values."""
        return norms(actual.double() - self.right)

    def is_right(self, actual: Tensor) -> bool:
        """Returns whether every number is written, and each of the three errors is within the bar."""
        return bool((self.errors(actual) <= self.bar).all())


def norms(qkv: Tensor) -> Tensor:
    """Returns (3,) norms of all queries, keys and values."""
    return torch.linalg.vector_norm(qkv, dim=(0, 2, 3))


@pytest.mark.parametrize(("shape", "dtype", "head_dim"), CASES)
def test_gradients_are_exact(shape: Shape, dtype: Dtype, head_dim: int) -> None:
    """Gradients equal those of autograd through the reference in float64, and both schedules give the same bits."""
    window, queries, candidates, num_heads = shape
    rows = packed_rows(queries, candidates, shared=True)
    layer = Layer(rows, window, dtype, num_heads=num_heads, head_dim=head_dim)
    actual, again = (layer.run(schedule, seed) for seed, schedule in enumerate(SCHEDULES))

    assert layer.is_right(actual)
    assert torch.equal(actual, again)


SMALL = packed_rows([35, 3], [[70, 0, 17], [64]], shared=True)
MISTAKES: dict[GradientPart, tuple[Mistake, ...]] = {
    "rows": (
        Mistake("first-key", "is_cls ? $ : max_of(0, position - w - 1)"),
        Mistake("last-key", "min_of(tile.num_rows - 1, position + w)"),
        Mistake("sees-globals", "works"),
        Mistake("query-globals", "sees_globals && number < globals"),
        Mistake("root", "sum * params.root"),
        Mistake("delta", "weight * row_sum(dot(towards, values))"),
        Mistake("vectors", "1 + vector"),
        Mistake("factors"),
        Mistake("factors-read"),
        Mistake("one-delta", "$ && !is_cls"),
    ),
    "columns": (
        Mistake("cls"),
        Mistake("last-row", "position + w"),
        Mistake("all-parts", "total.count"),
        Mistake("more", "0"),
        Mistake("slices-summed", "$ && other < kSlices - 1"),
        Mistake("slices"),
        Mistake("slices-read"),
    ),
}


@pytest.mark.parametrize(
    ("part", "number"), [(part, number) for part in MISTAKES for number in range(len(MISTAKES[part]))]
)
def test_a_mistake_is_noticed(part: GradientPart, number: int) -> None:
    layer = Layer(SMALL, 4, "float32", num_heads=2, head_dim=32)
    planted = plant(Gradient("float32", 32, part).kernel, MISTAKES[part])
    kernels = (planted, None) if part == "rows" else (None, planted)

    def survives(schedule: Schedule) -> bool:
        return layer.is_right(layer.run(schedule, kernels=kernels))

    assert_noticed(planted, number, survives)
