"""The plan of forward launches: kernel, grid, tiles, scratch. Made once per batch, launched in each layer.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from torch import Tensor

from bandrank_kernels.cuda import Dtype
from bandrank_kernels.launch import OLDEST_CAPABILITY, Launch, is_vectorizable, plan_launch, struct_layout
from bandrank_kernels.windowed_attention.capacity import Capacity
from bandrank_kernels.windowed_attention.cuda.tiles import Tiles, plan_tiles
from bandrank_kernels.windowed_attention.cuda.variants import HEAD_DIMS, Variant, Wide, choose_variant
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.rows import PackedRows

# `AttentionParams` of params.cuh.
PARAMS = struct_layout(
    addresses="qkv out lse tiles partials arrivals",
    longs="row_stride",
    ints="num_heads window stage_rows",
    floats="scale",
)
# A block's share of shared memory: two blocks fit on an sm_90, one on cards that have 100 KiB.
MAX_SHARED_BYTES = 96 * 1024
MIN_STAGE_ROWS = 64  # keys; the merge of [CLS] rows needs some 2 KiB whatever the keys


@lru_cache(1024)
def why_unsupported(
    pattern: AttentionPattern, *, head_dim: int, dtype: str, capability: tuple[int, int] = OLDEST_CAPABILITY
) -> str | None:
    """Why the CUDA kernels cannot run this attention, as a clause for an error message; None if they can.

    dtype: its name, such as "float16".  capability: the card's compute capability, (major, minor).
    """
    sparse = AttentionPattern.sparse(pattern.window)
    if pattern != sparse:
        return f"the kernels know the sparse cross-encoder's pattern alone ({sparse}, any window), got {pattern}"
    if head_dim not in HEAD_DIMS:
        return f"head_dim must be one of {HEAD_DIMS}, got {head_dim}"
    if dtype not in get_args(Dtype):
        return f"dtype must be one of {', '.join(get_args(Dtype))}; got {dtype}"
    if capability < OLDEST_CAPABILITY:
        return f"the card must have compute capability 7.5 or higher, got {'.'.join(map(str, capability))}"
    return None


@dataclass(frozen=True, eq=False)
class ForwardPlan:
    """A launch without its tensors.

    tiles: (num_tiles, 8) int32, to be copied to the device.  window: in tokens; the length of the longest candidate
    where there is no limit.  stage_rows: keys that shared memory holds at once; 0 for kernels that use none.
    """

    variant: Variant
    tiles: Tiles
    num_candidates: int
    num_heads: int
    window: int
    stage_rows: int

    @property
    def signature(self) -> tuple[Variant, int, int]:
        """All that a launch depends on, except its grid and its addresses."""
        return self.variant, self.window, self.stage_rows

    @property
    def blocks(self) -> int:
        """Blocks of the grid; 0 for a batch without rows, which cannot be launched."""
        return self.variant.num_blocks(len(self.tiles), self.num_heads)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        if isinstance(self.variant, Wide):
            return (self.stage_rows + self.variant.chunk) * self.variant.bytes_per_key
        return self.variant.shared_bytes

    @property
    def num_partials(self) -> int:
        """float32 of scratch, initialised or not."""
        return len(self.tiles) * self.num_heads * (self.variant.head_dim + 2)

    @property
    def num_arrivals(self) -> int:
        """int32 of scratch, zero before the first launch and after every launch."""
        return self.num_candidates * self.num_heads

    def launch(
        self, qkv: Tensor, out: Tensor, lse: Tensor | None, *, tiles: Tensor, partials: Tensor, arrivals: Tensor
    ) -> Launch:
        """The launch that writes `out`, and `lse` if it is given.

        qkv: (num_rows, 3, num_heads, head_dim), `is_readable`.  out: (num_rows, num_heads, head_dim), contiguous.
        lse: (num_rows, num_heads) float32, the logarithm to base 2 of the sum of exponentials of each row's scores.
        tiles: `self.tiles` on the device.  partials, arrivals: scratch of `num_partials` and `num_arrivals`.
        """
        assert is_readable(qkv), "rows that the kernels cannot read in place. This is a bug."
        return plan_launch(
            self.variant.kernel,
            blocks=self.blocks,
            threads=self.variant.threads,
            shared_bytes=self.shared_bytes,
            layout=PARAMS,
            qkv=qkv,
            out=out,
            lse=lse,
            tiles=tiles,
            partials=partials,
            arrivals=arrivals,
            row_stride=qkv.stride(0),
            num_heads=self.num_heads,
            window=self.window,
            stage_rows=self.stage_rows,
            scale=math.log2(math.e) / math.sqrt(self.variant.head_dim),
        )


def is_readable(qkv: Tensor) -> bool:
    """Whether the kernels can read these rows without a copy: 16 bytes at once, heads one after the other."""
    step_fits = qkv.stride(0) * qkv.element_size() < 2**31  # narrow.cuh has it in 32 bits
    if qkv.is_contiguous():  # nearly always
        return step_fits and is_vectorizable(qkv)
    _, _, num_heads, head_dim = qkv.shape
    packed = (num_heads * head_dim, head_dim, 1)
    together = all(
        size == 1 or step == right for size, step, right in zip(qkv.shape[1:], qkv.stride()[1:], packed, strict=True)
    )
    return together and step_fits and is_vectorizable(qkv)


def plan_forward(
    rows: PackedRows,
    pattern: AttentionPattern,
    *,
    num_heads: int,
    head_dim: int,
    dtype: Dtype,
    capability: tuple[int, int],
    max_shared_bytes: int = MAX_SHARED_BYTES,
    capacity: Capacity | None = None,
    variant: Variant | None = None,
) -> ForwardPlan:
    """The launches of a batch, one for each layer: Schlatt et al. 2024, section 3, in one kernel.

    max_shared_bytes: the most that a block may use.  capacity: plans all but the contents of the tiles for it, instead
    of for the batch.  variant: the kernel, if not the one that `choose_variant` names.
    Raises ValueError for the reasons of `why_unsupported`, or if the tiles do not fit.
    """
    if reason := why_unsupported(pattern, head_dim=head_dim, dtype=dtype, capability=capability):
        raise ValueError(reason)
    room = capacity or Capacity.exactly(rows)
    variant = variant or choose_variant(
        dtype=dtype,
        head_dim=head_dim,
        capability=capability,
        window=pattern.window,
        query_rows=room.query_rows,
        candidate_rows=room.candidate_rows,
    )
    window = room.candidate_rows if pattern.window is None else min(pattern.window, room.candidate_rows)
    stage_rows = 0
    if isinstance(variant, Wide):
        needed = room.query_rows + 1 + min(room.candidate_rows, variant.tile_rows + 2 * window)
        fits = max_shared_bytes // variant.bytes_per_key - variant.chunk
        stage_rows = max(MIN_STAGE_ROWS, min(needed + needed % 2, fits // 2 * 2))
    most_tiles = capacity.num_tiles(variant.tile_rows) if capacity else None  # @capacity-tiles
    return ForwardPlan(
        variant=variant,
        tiles=plan_tiles(rows, variant.tile_rows, capacity=most_tiles),
        num_candidates=room.num_candidates,
        num_heads=num_heads,
        window=window,
        stage_rows=stage_rows,
    )
