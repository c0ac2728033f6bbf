"""`AttentionParams` of params.cuh as a NumPy record, which CuPy passes by value."""

import numpy as np

# The fields of the C struct in its order; align=True lays them out as a C compiler does.
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
