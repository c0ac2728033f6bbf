"""The absorbed last layer in one launch: its kernels, the choice among them, and the launch. Needs no GPU."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, get_args

from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, HALF_DTYPES, Dtype, read_source
from bandrank_kernels.launch import VECTOR_BYTES, Kernel, Launch, is_vectorizable, plan_launch
from bandrank_kernels.windowed_attention.cuda.params import ABSORBED_PARAMS
from bandrank_kernels.windowed_attention.cuda.tiles import Tiles
from bandrank_kernels.windowed_attention.cuda.variants import FOLDER, TENSOR_CORES

# A passage then fits in one block. For long candidates the partial results of 12 heads add a tenth to the reads.
TILE_ROWS = 256
MAX_HEADS = 16
MAX_HIDDEN_SIZE = 1024
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
class AbsorbedVariant(ABC):
    """One instance of a kernel template."""

    file: ClassVar[str]
    others: ClassVar[tuple[str, ...]]  # files at the start of its source
    dtype: Dtype

    @property
    def kernel(self) -> Kernel:
        """The kernel for the launcher to compile."""
        files = ("cuda/primitives.cuh", f"{FOLDER}/params.cuh", *self.others, f"{FOLDER}/absorbed.cuh")
        return Kernel(read_source(*files, f"{FOLDER}/{self.file}"), self.name_expression)

    @property
    @abstractmethod
    def name_expression(self) -> str:
        """The instance's name in C++, for NVRTC."""

    @property
    @abstractmethod
    def max_hidden_size(self) -> int:
        """The widest rows that it takes."""

    @abstractmethod
    def threads(self, num_heads: int) -> int:
        """Threads of a block."""

    @abstractmethod
    def shared_bytes(self, hidden_size: int) -> int:
        """Dynamic shared memory of a block, in bytes."""


@dataclass(frozen=True)
class AbsorbedMma(AbsorbedVariant):
    """Runs on tensor cores (absorbed_mma.cuh). warps: warps of a block.  slices: slices of 32 columns of each warp."""

    file = "absorbed_mma.cuh"
    others = ("cuda/async_copy.cuh", f"{FOLDER}/fragments.cuh")
    warps: int
    slices: int

    @property
    def name_expression(self) -> str:
        # Registers must allow for 16 warps on a multiprocessor.
        return f"absorbed_mma<{C_TYPES[self.dtype]}, {self.slices}, {self.warps}, {16 // self.warps}>"

    @property
    def max_hidden_size(self) -> int:
        return 32 * self.slices * self.warps

    def threads(self, num_heads: int) -> int:  # noqa: ARG002  # 16 of them, whatever their number
        return 32 * self.warps

    def shared_bytes(self, hidden_size: int) -> int:  # noqa: ARG002  # padded to the widest
        chunk = 16  # kChunk of the source
        key_pieces, part_pieces = 4 * self.slices + 1, 4  # of each key; 16 floats, one for each head
        return 2 * self.warps * chunk * (key_pieces + part_pieces) * VECTOR_BYTES


@dataclass(frozen=True)
class AbsorbedSimt(AbsorbedVariant):
    """Runs in float32 arithmetic without tensor cores (absorbed_simt.cuh). pieces: 16-byte pieces of each lane."""

    file = "absorbed_simt.cuh"
    others = (f"{FOLDER}/quad.cuh",)
    pieces: int

    @property
    def name_expression(self) -> str:
        return f"absorbed_simt<{C_TYPES[self.dtype]}, {self.pieces}>"

    @property
    def max_hidden_size(self) -> int:
        return 32 * self.pieces * VECTOR_BYTES // self._number_bytes

    def threads(self, num_heads: int) -> int:
        return 32 * num_heads

    def shared_bytes(self, hidden_size: int) -> int:
        chunk = 8  # kChunk of the source
        return chunk * hidden_size * self._number_bytes

    @property
    def _number_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2


# Narrow ones first: the first that is wide enough is taken.
ABSORBED: tuple[AbsorbedVariant, ...] = (
    *(AbsorbedMma(dtype, *sizes) for dtype, sizes in product(HALF_DTYPES, ((4, 3), (8, 3), (8, 4)))),
    *(AbsorbedSimt(dtype, pieces) for dtype, pieces in product(HALF_DTYPES, (2, 3, 4))),
    *(AbsorbedSimt("float32", pieces) for pieces in (3, 6, 8)),
)


def choose_absorbed(dtype: Dtype, hidden_size: int, capability: tuple[int, int]) -> AbsorbedVariant:
    """The kernel for rows of that many columns, on a card of that compute capability."""
    family = AbsorbedSimt if dtype == "float32" or capability < TENSOR_CORES else AbsorbedMma
    return next(
        variant
        for variant in ABSORBED
        if isinstance(variant, family) and variant.dtype == dtype and variant.max_hidden_size >= hidden_size
    )


@dataclass(frozen=True, eq=False)
class AbsorbedPlan:
    """A launch without its tensors. tiles: (num_tiles, 8) int32, those of candidates, to be copied to the device."""

    variant: AbsorbedVariant
    tiles: Tiles
    num_heads: int
    hidden_size: int

    @property
    def num_partials(self) -> int:
        """float32 of scratch, in any state."""
        return len(self.tiles) * self.num_heads * (self.hidden_size + 2)

    @property
    def num_arrivals(self) -> int:
        """int32 of scratch, zero before the first launch and after each. Every candidate has a tile."""
        return len(self.tiles)

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
            threads=self.variant.threads(self.num_heads),
            shared_bytes=self.variant.shared_bytes(self.hidden_size),
            layout=ABSORBED_PARAMS,
            query=query,
            rows=rows,
            out=out,
            tiles=tiles,
            partials=partials,
            arrivals=arrivals,
            row_stride=rows.stride(0),
            num_heads=self.num_heads,
            hidden_size=self.hidden_size,
            tile_rows=TILE_ROWS,
            scale=scale * math.log2(math.e),
        )
