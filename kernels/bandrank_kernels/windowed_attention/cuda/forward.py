"""The plan of a forward launch: kernel, grid, tiles, scratch. Made once per batch, on the host."""

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from bandrank_kernels.windowed_attention.cuda.params import PARAMS
from bandrank_kernels.windowed_attention.cuda.tiles import Tiles, plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import HEAD_DIMS, Dtype, Variant, Wide, choose_variant
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.rows import PackedRows

SPARSE_SWITCHES = AttentionPattern(query_to_cls=False, query_to_candidate=False)
OLDEST = (7, 5)  # compute capability that CUDA 13 still compiles for
# A block's share of shared memory: two blocks fit on an sm_90, one on cards that have 100 KiB.
MAX_SHARED_BYTES = 96 * 1024
MIN_STAGE_ROWS = 64  # keys; the merge of [CLS] rows needs some 2 KiB whatever the keys


def why_unsupported(
    pattern: AttentionPattern, *, head_dim: int, dtype: str, capability: tuple[int, int] = OLDEST
) -> str | None:
    """Why the CUDA kernels cannot run this attention, as a clause for an error message; None if they can.

    dtype: its name, such as "float16".  capability: the card's compute capability, (major, minor).
    """
    if pattern != AttentionPattern(pattern.window, query_to_cls=False, query_to_candidate=False):
        return (
            f"the kernels know the sparse cross-encoder's pattern alone ({SPARSE_SWITCHES}, any window), got {pattern}"
        )
    if head_dim not in HEAD_DIMS:
        return f"head_dim must be one of {HEAD_DIMS}, got {head_dim}"
    if dtype not in get_args(Dtype):
        return f"dtype must be one of {', '.join(get_args(Dtype))}; got {dtype}"
    if capability < OLDEST:
        return f"the card must have compute capability 7.5 or higher, got {'.'.join(map(str, capability))}"
    return None


@dataclass(frozen=True, eq=False)
class ForwardLaunch:
    """All that a launch needs but the addresses.

    tiles: (num_tiles, 8) int32, to be copied to the device.  window: in tokens; the longest candidate's for no limit.
    stage_rows: keys that shared memory holds at once; 0 for kernels that use none.
    """

    variant: Variant
    tiles: Tiles
    num_candidates: int
    num_heads: int
    window: int
    stage_rows: int

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.variant.num_blocks(len(self.tiles), self.num_heads), 1, 1

    @property
    def block(self) -> tuple[int, int, int]:
        return self.variant.threads, 1, 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory. Above 48 KiB the kernel's attribute must be raised before its first launch."""
        return self.stage_rows * self.variant.bytes_per_key if isinstance(self.variant, Wide) else 0

    @property
    def num_partials(self) -> int:
        """float32 of scratch, in any state."""
        return len(self.tiles) * self.num_heads * (self.variant.head_dim + 2)

    @property
    def num_arrivals(self) -> int:
        """int32 of scratch, zero before the first launch and after each."""
        return self.num_candidates * self.num_heads

    def params(
        self, *, qkv: int, row_stride: int, out: int, lse: int, tiles: int, partials: int, arrivals: int
    ) -> np.void:
        """The kernel's one argument, a record of `PARAMS`.

        All but `row_stride` are device addresses. qkv: (num_rows, 3, num_heads, head_dim), rows `row_stride` numbers
        apart.  out: (num_rows, num_heads, head_dim).  lse: (num_rows, num_heads) float32, the logarithm to base 2 of
        the sum of exponentials of each row's scores; 0 for none.  tiles: of `self.tiles`.
        Raises ValueError if qkv or out is not aligned to 16 bytes, or the stride is not a multiple of 8 numbers.
        """
        if qkv % 16 or out % 16 or row_stride % 8:
            raise ValueError(
                f"qkv and out must be aligned to 16 bytes and rows to 8 numbers, got {qkv:#x}, {out:#x}, {row_stride}"
            )
        scale = math.log2(math.e) / math.sqrt(self.variant.head_dim)
        addresses = (qkv, out, lse, tiles, partials, arrivals)
        numbers = (row_stride, self.num_heads, self.window, self.stage_rows, scale)
        return np.void((*addresses, *numbers), PARAMS)


def plan_forward(
    rows: PackedRows,
    pattern: AttentionPattern,
    *,
    num_heads: int,
    head_dim: int,
    dtype: Dtype,
    capability: tuple[int, int],
    max_shared_bytes: int = MAX_SHARED_BYTES,
    tile_capacity: int | None = None,
) -> ForwardLaunch:
    """The launch for one layer of a batch: Schlatt et al. 2024, section 3, in one kernel.

    max_shared_bytes: what a block may take.  tile_capacity: tiles of a grid of fixed size, the last of them unused.
    Raises ValueError for what `why_unsupported` names, or if the tiles do not fit.
    """
    if reason := why_unsupported(pattern, head_dim=head_dim, dtype=dtype, capability=capability):
        raise ValueError(reason)
    candidate_rows = int(np.diff(rows.cu_candidates).max(initial=0))
    query_rows = int(np.diff(rows.cu_queries).max(initial=0))
    variant = choose_variant(
        dtype=dtype,
        head_dim=head_dim,
        capability=capability,
        window=pattern.window,
        query_rows=query_rows,
        candidate_rows=candidate_rows,
    )
    window = candidate_rows if pattern.window is None else min(pattern.window, candidate_rows)
    stage_rows = 0
    if isinstance(variant, Wide):
        needed = query_rows + 1 + min(candidate_rows, variant.tile_rows + 2 * window)
        fits = max_shared_bytes // variant.bytes_per_key
        stage_rows = max(MIN_STAGE_ROWS, min(needed + needed % 2, fits // 2 * 2))
    return ForwardLaunch(
        variant=variant,
        tiles=plan_tiles(rows, variant.tile_rows, capacity=tile_capacity),
        num_candidates=rows.num_candidates,
        num_heads=num_heads,
        window=window,
        stage_rows=stage_rows,
    )
