"""The absorbed last layer in one launch: its kernels, the choice among them, and the launch. Needs no GPU."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import get_args

from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, HALF_DTYPES, Dtype, read_source
from bandrank_kernels.launch import (
    TENSOR_CORES,
    VECTOR_BYTES,
    Kernel,
    Launch,
    is_vectorizable,
    plan_launch,
    struct_layout,
)
from bandrank_kernels.windowed_attention.cuda.tiles import Tiles
from bandrank_kernels.windowed_attention.cuda.variants import FOLDER

# `AbsorbedParams` of absorbed.cuh.
PARAMS = struct_layout(
    addresses="query rows out tiles partials arrivals",
    longs="row_stride",
    ints="num_heads hidden_size tile_rows",
    floats="scale",
)
# A passage then fits in one block. For long candidates the partial results of 12 heads add a twentieth to the reads.
TILE_ROWS = 512
MAX_HEADS = 16
MAX_HIDDEN_SIZE = 1024
PARTIAL_HEADER = 4  # kPartialHeader of absorbed.cuh
COLUMNS = 8  # 16 bytes of 16-bit numbers


def why_absorbed_unsupported(*, num_heads: int, hidden_size: int, dtype: str) -> str | None:
    """Why the CUDA kernels cannot run the absorbed last layer, as a clause for a message; None if they can.

    dtype: its name, such as "float16".
    """
    if dtype not in get_args(Dtype):
        return f"dtype must be one of {', '.join(get_args(Dtype))}; got {dtype}"
    if not 0 < num_heads <= MAX_HEADS:
        return f"num_heads must be within 1..{MAX_HEADS}, got {num_heads}"
    if hidden_size % COLUMNS or not 0 < hidden_size <= MAX_HIDDEN_SIZE:
        return f"hidden_size must be a multiple of {COLUMNS} up to {MAX_HIDDEN_SIZE}, got {hidden_size}"
    return None


@dataclass(frozen=True)
class AbsorbedVariant:
    """One instance of a kernel template.

    file, others: its source, and files that precede it.  name_expression: the instance's name in C++, for NVRTC.
    threads, head_threads: of a block, and more for each head.  shared_bytes, column_bytes: dynamic shared memory of a
    block, and more for each column.
    """

    file: str
    others: tuple[str, ...]
    dtype: Dtype
    name_expression: str
    max_hidden_size: int
    threads: int = 0
    head_threads: int = 0
    shared_bytes: int = 0
    column_bytes: int = 0

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel for the launcher to compile."""
        files = ("cuda/primitives.cuh", f"{FOLDER}/params.cuh", *self.others, f"{FOLDER}/absorbed.cuh")
        return Kernel(read_source(*files, f"{FOLDER}/{self.file}"), self.name_expression)


def absorbed_mma(dtype: Dtype, warps: int, slices: int, groups: int) -> AbsorbedVariant:
    """On tensor cores, 16 heads whatever their number. warps, slices: of a group, and slices of 32 columns of each.
    groups: of warps in a block.
    """
    blocks = 16 // (warps * groups)  # registers must allow for 16 warps on a multiprocessor
    chunk, key_pieces, part_pieces = 16, 4 * slices + 1, 4  # kChunk of the source; of each key; 16 floats, one a head
    return AbsorbedVariant(
        file="absorbed_mma.cuh",
        others=("cuda/async_copy.cuh", f"{FOLDER}/fragments.cuh"),
        dtype=dtype,
        name_expression=f"absorbed_mma<{C_TYPES[dtype]}, {slices}, {warps}, {groups}, {blocks}>",
        max_hidden_size=32 * slices * warps,
        threads=32 * warps * groups,
        shared_bytes=2 * groups * warps * chunk * (key_pieces + part_pieces) * VECTOR_BYTES,
    )


def _simt(dtype: Dtype, pieces: int) -> AbsorbedVariant:
    """In float32 arithmetic without tensor cores. pieces: 16-byte pieces of each lane."""
    chunk, number_bytes = 8, 4 if dtype == "float32" else 2  # kChunk of the source
    return AbsorbedVariant(
        file="absorbed_simt.cuh",
        others=(f"{FOLDER}/quad.cuh",),
        dtype=dtype,
        name_expression=f"absorbed_simt<{C_TYPES[dtype]}, {pieces}>",
        max_hidden_size=32 * pieces * VECTOR_BYTES // number_bytes,
        head_threads=32,
        column_bytes=chunk * number_bytes,
    )


# Narrow ones first: the first that is wide enough is taken.
ABSORBED = (
    *(absorbed_mma(dtype, *sizes) for dtype, sizes in product(HALF_DTYPES, ((4, 3, 2), (8, 3, 1), (8, 4, 1)))),
    *(_simt(dtype, pieces) for dtype, pieces in product(HALF_DTYPES, (2, 3, 4))),
    *(_simt("float32", pieces) for pieces in (3, 6, 8)),
)


def choose_absorbed(dtype: Dtype, hidden_size: int, capability: tuple[int, int]) -> AbsorbedVariant:
    """The kernel for rows of that many columns, on a card of that compute capability."""
    file = "absorbed_simt.cuh" if dtype == "float32" or capability < TENSOR_CORES else "absorbed_mma.cuh"
    return next(
        variant
        for variant in ABSORBED
        if (variant.file, variant.dtype) == (file, dtype) and variant.max_hidden_size >= hidden_size
    )


@dataclass(frozen=True, eq=False)
class AbsorbedPlan:
    """A launch without its tensors.

    tiles: (num_tiles, 8) int32, those of candidates, of up to `tile_rows` rows, to be copied to the device.
    """

    variant: AbsorbedVariant
    tiles: Tiles
    num_candidates: int
    num_heads: int
    hidden_size: int
    tile_rows: int = TILE_ROWS

    @property
    def num_partials(self) -> int:
        """float32 of scratch, initialised or not."""
        return len(self.tiles) * self.num_heads * (PARTIAL_HEADER + self.hidden_size)

    @property
    def num_arrivals(self) -> int:
        """int32 of scratch, zero before the first launch and after every launch."""
        return self.num_candidates

    def launch(
        self,
        query: Tensor,
        rows: Tensor,
        scale: float,
        *,
        out: Tensor,
        tiles: Tensor,
        partials: Tensor,
        arrivals: Tensor,
    ) -> Launch:
        """The launch that writes `out`.

        query, out: (num_candidates, num_heads, hidden_size), contiguous from a 16-byte address on.
        rows: (num_rows, hidden_size), each at such an address, any stride between them.  tiles: `self.tiles` on the
        device.  partials, arrivals: scratch of `num_partials` and `num_arrivals`.
        """
        for tensor in (query, rows, out):
            assert is_vectorizable(tensor), "rows that the kernels cannot read in place. This is a bug."
        return plan_launch(
            self.variant.kernel,
            blocks=len(self.tiles),
            threads=self.variant.threads + self.variant.head_threads * self.num_heads,
            shared_bytes=self.variant.shared_bytes + self.variant.column_bytes * self.hidden_size,
            layout=PARAMS,
            query=query,
            rows=rows,
            out=out,
            tiles=tiles,
            partials=partials,
            arrivals=arrivals,
            row_stride=rows.stride(0),
            num_heads=self.num_heads,
            hidden_size=self.hidden_size,
            tile_rows=self.tile_rows,
            scale=scale * math.log2(math.e),
        )
