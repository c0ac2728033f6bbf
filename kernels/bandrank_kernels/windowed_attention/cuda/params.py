"""The structs that kernels take as NumPy records, which CuPy passes by value."""

from bandrank_kernels.launch import struct_layout

# `AttentionParams` of params.cuh.
PARAMS = struct_layout(
    addresses="qkv out lse tiles partials arrivals",
    longs="row_stride",
    ints="num_heads window stage_rows",
    floats="scale",
)
# `GradientParams` of gradient.cuh.
GRADIENT_PARAMS = struct_layout(
    addresses="qkv out towards result lse delta tiles first_vectors partials totals",
    longs="row_stride",
    ints="num_heads window column_blocks",
    floats="scale root",
)
# `AbsorbedParams` of absorbed.cuh.
ABSORBED_PARAMS = struct_layout(
    addresses="query rows out tiles partials arrivals",
    longs="row_stride",
    ints="num_heads hidden_size tile_rows",
    floats="scale",
)
