"""The kernels that are shipped, and the choice of one for a batch."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import ClassVar, Literal, get_args

from bandrank_kernels.cuda import C_TYPES, HALF_DTYPES, Dtype, read_source
from bandrank_kernels.launch import TENSOR_CORES, Kernel

GradientPart = Literal["rows", "columns"]
GRADIENT_PARTS: tuple[GradientPart, ...] = ("rows", "columns")
HEAD_DIMS = (32, 64)

FOLDER = "windowed_attention/cuda"
SHARED = (
    "cuda/primitives.cuh",
    f"{FOLDER}/params.cuh",
    f"{FOLDER}/fragments.cuh",
    f"{FOLDER}/cls_row.cuh",
    f"{FOLDER}/quad.cuh",
)
ASYNC_COPY, STAGED = "cuda/async_copy.cuh", f"{FOLDER}/staged.cuh"


@dataclass(frozen=True)
class Variant(ABC):
    """One instance of a kernel template.

    file, others: its source, and files between the shared ones and it.
    """

    file: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = ()
    dtype: Dtype
    head_dim: int

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the source, in order."""
        return *SHARED, *self.others, f"{FOLDER}/{self.file}"

    @property
    def source(self) -> str:
        """The text to compile: one translation unit that includes only CUDA's headers."""
        return read_source(*self.files)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel for the launcher to compile."""
        return Kernel(self.source, self.name_expression)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, as far as it depends on the kernel alone."""
        return 0

    @property
    @abstractmethod
    def name_expression(self) -> str:
        """The instance's name in C++, for NVRTC."""

    @property
    @abstractmethod
    def tile_rows(self) -> int:
        """Rows of a tile."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    def num_blocks(self, num_tiles: int, num_heads: int) -> int:
        """Blocks of a launch. Heads change fastest, so that blocks side by side read the same rows."""
        return num_tiles * num_heads

    def _name(self, kernel: str, *numbers: int) -> str:
        return f"{kernel}<{', '.join([C_TYPES[self.dtype], str(self.head_dim), *map(str, numbers)])}>"


@dataclass(frozen=True)
class Narrow(Variant):
    """Windows up to 16 and queries up to 63 rows, on tensor cores, the rows of a step in shared memory (narrow.cuh).

    band_tiles: tiles of 8 keys for 15 rows and their windows.  global_tiles: tiles of 8 keys for [CLS] and the query.
    """

    file = "narrow.cuh"
    others = ASYNC_COPY, STAGED
    tile_rows = 90  # 6 steps: shorter tiles read the globals more often, longer ones leave processors idle at the end
    band_tiles: int
    global_tiles: int

    @property
    def heads_per_block(self) -> int:
        """Heads of a block, one per warp. Their rows are 256 consecutive bytes."""
        return 128 // self.head_dim

    @property
    def threads(self) -> int:
        return 32 * self.heads_per_block

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: `WarpRows` for each head."""
        return self.heads_per_block * 2 * self.head_dim * (16 + 2 * 8 * (self.band_tiles + self.global_tiles))

    @property
    def min_blocks(self) -> int:
        """Blocks per multiprocessor that registers must allow for: on sm_90, the most without spills that shared memory
        has room for.
        """
        return NARROW_MIN_BLOCKS[self.head_dim, self.band_tiles][GLOBAL_TILES.index(self.global_tiles)]

    @property
    def name_expression(self) -> str:
        return self._name("narrow_forward", self.band_tiles, self.global_tiles, self.tile_rows, self.min_blocks)

    def num_blocks(self, num_tiles: int, num_heads: int) -> int:
        return num_tiles * -(-num_heads // self.heads_per_block)


GLOBAL_TILES = (2, 4, 8)
NARROW_MIN_BLOCKS = {(32, 3): (5, 4, 3), (32, 6): (4, 4, 3), (64, 3): (6, 6, 4), (64, 6): (4, 4, 3)}  # by GLOBAL_TILES
NARROW_MAX_WINDOW = 16
NARROW_MAX_QUERY_ROWS = 63


@dataclass(frozen=True)
class Wide(Variant):
    """Any window and any query, on tensor cores, keys staged in shared memory (wide.cuh).

    warps, rounds: a tile is 31 rows for each warp in each round.
    """

    file = "wide.cuh"
    others = ASYNC_COPY, STAGED
    chunk = 32  # keys, by which a warp may read beyond a stage
    warps: int
    rounds: int

    @property
    def tile_rows(self) -> int:
        return 31 * self.warps * self.rounds

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def name_expression(self) -> str:
        return self._name("wide_forward", self.warps, self.rounds, self.min_blocks)

    @property
    def min_blocks(self) -> int:
        """Up to 16 warps a multiprocessor at D = 32 and 12 at D = 64, the most without spills in the loop over keys."""
        return (16 if self.head_dim == 32 else 12) // self.warps

    @property
    def bytes_per_key(self) -> int:
        """Shared memory of a key: a row of K and one of V."""
        return 2 * 2 * self.head_dim


# Warps and rounds, by head_dim, where the longest candidate has up to 64 rows, up to 256, or more. Warps without rows
# hold registers that others could have; rounds need shared memory for their keys, which heads of 64 have not to spare.
WIDE_ROWS = (64, 256)
WIDE_LAUNCHES = {32: ((2, 2), (3, 2), (4, 2)), 64: ((2, 2), (6, 1), (4, 1))}


@dataclass(frozen=True)
class Simt(Variant):
    """Any window and any query, without tensor cores, in float32 arithmetic (simt.cuh)."""

    file = "simt.cuh"
    tile_rows = 31
    threads = 128

    @property
    def name_expression(self) -> str:
        return self._name("simt_forward")


@dataclass(frozen=True)
class Gradient(Variant):
    """One of the two launches of the backward pass, in float32 arithmetic (gradient.cuh)."""

    file = "gradient.cuh"
    tile_rows = 31
    threads = 128
    part: GradientPart

    @property
    def name_expression(self) -> str:
        return self._name(f"gradient_{self.part}")


@lru_cache(1024)  # of the buckets of a few models
def choose_variant(
    *,
    dtype: Dtype,
    head_dim: int,
    capability: tuple[int, int],
    window: int | None,
    query_rows: int,
    candidate_rows: int,
) -> Variant:
    """The kernel for a batch, on a card of that compute capability.

    window: tokens on each side, None for no limit.  query_rows, candidate_rows: of the longest query and candidate.
    """
    if dtype == "float32" or capability < TENSOR_CORES:
        return Simt(dtype, head_dim)
    if window is not None and window <= NARROW_MAX_WINDOW and query_rows <= NARROW_MAX_QUERY_ROWS:
        band_tiles = 3 if window <= 4 else 6
        global_tiles = next(tiles for tiles in GLOBAL_TILES if query_rows < 8 * tiles)
        return Narrow(dtype, head_dim, band_tiles, global_tiles)
    return Wide(dtype, head_dim, *WIDE_LAUNCHES[head_dim][bisect_left(WIDE_ROWS, candidate_rows)])


SHIPPED: tuple[Variant, ...] = (
    *(
        Narrow(dtype, *sizes, global_tiles)
        for dtype, sizes, global_tiles in product(HALF_DTYPES, NARROW_MIN_BLOCKS, GLOBAL_TILES)
    ),
    *(
        Wide(dtype, head_dim, *launch)
        for dtype, head_dim in product(HALF_DTYPES, HEAD_DIMS)
        for launch in WIDE_LAUNCHES[head_dim]
    ),
    *(Simt(dtype, head_dim) for dtype, head_dim in product(get_args(Dtype), HEAD_DIMS)),
    *(Gradient(dtype, head_dim, part) for dtype, head_dim, part in product(get_args(Dtype), HEAD_DIMS, GRADIENT_PARTS)),
)
