"""Tries launch parameters other than the shipped ones. Of windowed attention: rows per tile, warps per block and their
rounds, and the blocks per multiprocessor that registers must allow for. Of the last layer's: rows per tile, and groups
of warps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from bandrank_bench.gpu import parts
from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.gpu.operations import timed, timed_part
from bandrank_bench.gpu.parts import Part
from bandrank_bench.gpu.shape import Passages, Shape
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.system import System
from bandrank_kernels.cuda.assembly import AssemblerNotFound, assemble
from bandrank_kernels.launch import device_capability, launch, load
from bandrank_kernels.windowed_attention import AttentionPattern
from bandrank_kernels.windowed_attention.cuda.absorbed import AbsorbedPlan, absorbed_mma
from bandrank_kernels.windowed_attention.cuda.forward import ForwardPlan, plan_forward
from bandrank_kernels.windowed_attention.cuda.tiles import plan_candidate_tiles
from bandrank_kernels.windowed_attention.cuda.variants import Narrow, Variant, Wide

PASSAGES = Passages(164, 4, 32)
NARROW_SHAPES = {  # with the rows per tile to try
    PASSAGES: (60, 75, 90, 105, 120, 165),
    Shape(164, 4, 32): (60, 75, 90, 105, 120, 165),
    Shape(54, 4, 32): (30, 60, 90),
    Shape(4086, 4, 32): (60, 90, 105, 120, 180, 240),
    Shape(164, 4, 64): (60, 90, 120),
}
NARROW_BLOCKS = {32: (4, 5), 64: (4, 6)}  # of four heads and of two, by head_dim; more spill
WIDE_SHAPES = [Shape(tokens, 64, head_dim) for head_dim in (32, 64) for tokens in (164, 4086)]
WIDE_LAUNCHES = {  # warps, rounds, and blocks per multiprocessor, by head_dim
    32: ((3, 1, 5), (4, 1, 4), (6, 1, 2), (3, 2, 5), (4, 2, 4), (6, 2, 2), (8, 1, 2), (8, 2, 2)),
    64: ((4, 1, 3), (6, 1, 2), (2, 1, 6), (2, 2, 6), (4, 1, 2), (8, 1, 1)),
}
LAST_SHAPES = (PASSAGES, Shape(164, 4, 32), Shape(4086, 4, 32))
LAST_GROUPS, LAST_ROWS = (1, 2), (256, 512, 1024)


@dataclass(frozen=True)
class TunedNarrow(Narrow):
    """The kernel for narrow windows with a choice of rows and blocks."""

    tile_rows: int = Narrow.tile_rows
    blocks: int = 1

    @property
    def min_blocks(self) -> int:
        return self.blocks


@dataclass(frozen=True)
class TunedWide(Wide):
    """The kernel for wide windows with a choice of blocks."""

    blocks: int = 1

    @property
    def min_blocks(self) -> int:
        return self.blocks


def cases(lab: Lab) -> Iterator[Case]:
    """A case for each choice, the shortest requests first."""
    chosen = list(choices())
    for shape, variant in chosen[:1] if lab.dry else chosen:
        yield Case(f"{shape}: {variant.name_expression}", partial(measured, lab, shape, variant))
    if not lab.dry:
        for shape, groups, rows in product(LAST_SHAPES, LAST_GROUPS, LAST_ROWS):
            part = partial(last_layer, lab, shape, groups, rows)
            yield Case(f"last layer {shape}: {groups} groups, {rows} rows", partial(timed_last, lab, part))


def choices() -> Iterator[tuple[Shape, Variant]]:
    """Yields each shape with each kernel to try on it."""
    for shape, tile_rows in NARROW_SHAPES.items():
        for rows, blocks in product(tile_rows, NARROW_BLOCKS[shape.head_dim]):
            yield shape, TunedNarrow("float16", shape.head_dim, 3, 2, rows, blocks)
    for shape in WIDE_SHAPES:
        for launch_size in WIDE_LAUNCHES[shape.head_dim]:
            yield shape, TunedWide("float16", shape.head_dim, *launch_size)


def measured(lab: Lab, shape: Shape, variant: Variant) -> Facts:
    """Microseconds of a call, and the kernel's resources by the driver. Raises AssertionError if its results differ
    from the shipped kernel's. Dry: only assembles it.
    """
    if lab.dry:
        try:
            used = assemble(variant.source, [variant.name_expression], "sm_90")[variant.name_expression]
        except AssemblerNotFound as error:
            raise Skipped(str(error)) from None
        return {"registers": used.registers, "spilled_bytes": used.spilled_bytes}
    times = timed(lab, shape, variant.name_expression, partial(system, lab, shape, variant))
    return {**times, **load(variant.kernel, lab.device).resources}


def system(lab: Lab, shape: Shape, variant: Variant) -> System:
    """The attention of a layer, by this kernel."""
    plan = plan_forward(
        shape.rows(),
        AttentionPattern.sparse(shape.window),
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        dtype=variant.dtype,
        capability=device_capability(lab.device),
        variant=variant,
    )
    scratch = scratch_of(lab, plan)

    def attend(qkv: Tensor) -> list[Tensor]:
        out = torch.empty_like(qkv[:, 0])
        launch(plan.launch(qkv, out, None, **scratch), lab.device)
        return [out]

    return System(variant.name_expression, lambda qkv: [qkv], attend, lambda results: results[0])


def scratch_of(lab: Lab, plan: ForwardPlan | AbsorbedPlan) -> dict[str, Any]:
    """The device memory of a plan's launches, by the names of their arguments."""
    return {
        "tiles": torch.from_numpy(plan.tiles).to(lab.device),
        "partials": torch.empty(plan.num_partials, device=lab.device),
        "arrivals": torch.zeros(plan.num_arrivals, dtype=torch.int32, device=lab.device),
    }


def last_layer(lab: Lab, shape: Shape, groups: int, tile_rows: int) -> Part:
    """The attention of the last layer with this many groups of warps and rows of a tile."""
    part, rows = parts.last_layer(lab, shape), shape.rows()
    variant = absorbed_mma("float16", 4, 3, groups)
    plan = AbsorbedPlan(
        variant, plan_candidate_tiles(rows, tile_rows), shape.num_candidates, shape.num_heads, shape.hidden, tile_rows
    )
    scratch = scratch_of(lab, plan)

    def call(query: Tensor, states: Tensor) -> list[Tensor]:
        out = torch.empty_like(query)
        launch(plan.launch(query, states, shape.head_dim**-0.5, out=out, **scratch), lab.device)
        return [out]

    return Part(part.name, part.draw, lambda backend: part.prepare(backend) if backend == "vectorized" else call)


def timed_last(lab: Lab, build: Callable[[], Part]) -> Facts:
    """The facts of `timed_part`."""
    return timed_part(lab, build(), lab.backend)
