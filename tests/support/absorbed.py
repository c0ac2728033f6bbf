"""Runs the absorbed last layer on the CPU, and computes the right output in float64."""

from dataclasses import dataclass, replace

import torch
from emulation.compiled import EmulationError, Schedule
from emulation.launches import emulate
from support.bands import random_rows
from support.forward_kernels import AMPERE, BARS
from support.guarded import guarded
from torch import Tensor

from bandrank_kernels.cuda import Dtype, dtype_name
from bandrank_kernels.launch import Kernel
from bandrank_kernels.windowed_attention import PackedRows
from bandrank_kernels.windowed_attention.cuda.absorbed import TILE_ROWS, AbsorbedPlan, choose_absorbed
from bandrank_kernels.windowed_attention.cuda.tiles import plan_candidate_tiles


@dataclass(frozen=True)
class Sizes:
    """The sizes of one launch, its dtype and its card."""

    dtype: Dtype
    num_heads: int
    hidden_size: int
    capability: tuple[int, int] = AMPERE

    def __str__(self) -> str:
        return f"{self.dtype} {self.num_heads}x{self.hidden_size} sm_{self.capability[0]}{self.capability[1]}"

    @property
    def scale(self) -> float:
        """The scale that makes scores N(0, 4): some keys count for much more than others, but none dominates."""
        return float(2 / self.hidden_size**0.5)

    def plan(self, rows: PackedRows, *, capacity: int | None = None) -> AbsorbedPlan:
        variant = choose_absorbed(self.dtype, self.hidden_size, self.capability)
        tiles = plan_candidate_tiles(rows, TILE_ROWS, capacity=capacity)
        return AbsorbedPlan(variant, tiles, rows.num_candidates, self.num_heads, self.hidden_size)

    def inputs(self, rows: PackedRows) -> tuple[Tensor, Tensor]:
        """Queries and rows of numbers that are drawn from N(0, 1)."""
        dtype = getattr(torch, self.dtype)
        query = random_rows(rows.num_candidates, self.num_heads, self.hidden_size, dtype=dtype)
        return query, random_rows(rows.num_rows, self.hidden_size, dtype=dtype, seed=1)


def attend_cls(
    plan: AbsorbedPlan,
    query: Tensor,
    rows: Tensor,
    scale: float,
    *,
    schedule: Schedule = "depth first",
    seed: int = 0,
    kernel: Kernel | None = None,
) -> Tensor:
    """Runs the kernel and returns its output. The output and the scratch memory start as NaN.

    kernel: used in place of the plan's.  Raises EmulationError if the kernel writes around the output or leaves a
    counter set.
    """
    partials = torch.full((plan.num_partials,), torch.nan)
    arrivals = torch.zeros(plan.num_arrivals, dtype=torch.int32)
    tiles = torch.from_numpy(plan.tiles)
    with guarded(*query.shape, dtype=query.dtype) as out:
        launch = plan.launch(query, rows, scale, out=out, tiles=tiles, partials=partials, arrivals=arrivals)
        emulate(replace(launch, kernel=kernel or launch.kernel), schedule, seed)
    if arrivals.any():
        raise EmulationError(f"{int(arrivals.count_nonzero())} counters are not zero after the launch")
    return out


def exact(query: Tensor, x: Tensor, scale: float, rows: PackedRows) -> Tensor:
    """The right output, computed in float64, one candidate at a time."""
    query, x = query.double(), x.double()
    out = torch.empty_like(query)
    for candidate in range(rows.num_candidates):
        asked = rows.query_rows(int(rows.candidate_query[candidate]))
        keys = x[[candidate, *asked, *rows.candidate_rows(candidate)]]
        out[candidate] = (scale * query[candidate] @ keys.T).softmax(-1) @ keys
    return out


def is_right(actual: Tensor, truth: Tensor) -> bool:
    """Whether the output is within the tolerances, as a whole and for the worst candidate."""
    errors = (actual.double() - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    bar = BARS[dtype_name(actual.dtype)]
    whole = (actual.double() - truth).norm() / truth.norm()
    # A candidate without rows averages only two or three numbers, so the rounding of weights does not even out.
    return bool(whole < bar) and bool((errors < 2 * bar).all())
