"""The structs that kernels take as NumPy records, which CuPy passes by value."""

import numpy as np

# `AttentionParams` of params.cuh: its fields in order; align=True lays them out as a C compiler does.
PARAMS = np.dtype(
    [
        ("qkv", np.uint64),
        ("out", np.uint64),
        ("lse", np.uint64),
        ("tiles", np.uint64),
        ("partials", np.uint64),
        ("arrivals", np.uint64),
        ("row_stride", np.int64),
        ("num_heads", np.int32),
        ("window", np.int32),
        ("stage_rows", np.int32),
        ("scale", np.float32),
    ],
    align=True,
)
# `GradientParams` of gradient.cuh.
GRADIENT_PARAMS = np.dtype(
    [
        ("qkv", np.uint64),
        ("out", np.uint64),
        ("towards", np.uint64),
        ("result", np.uint64),
        ("lse", np.uint64),
        ("delta", np.uint64),
        ("tiles", np.uint64),
        ("first_vectors", np.uint64),
        ("partials", np.uint64),
        ("totals", np.uint64),
        ("row_stride", np.int64),
        ("num_heads", np.int32),
        ("window", np.int32),
        ("column_blocks", np.int32),
        ("scale", np.float32),
        ("root", np.float32),
    ],
    align=True,
)
# `AbsorbedParams` of absorbed.cuh.
ABSORBED_PARAMS = np.dtype(
    [
        ("query", np.uint64),
        ("rows", np.uint64),
        ("out", np.uint64),
        ("tiles", np.uint64),
        ("partials", np.uint64),
        ("arrivals", np.uint64),
        ("row_stride", np.int64),
        ("num_heads", np.int32),
        ("hidden_size", np.int32),
        ("tile_rows", np.int32),
        ("scale", np.float32),
    ],
    align=True,
)
