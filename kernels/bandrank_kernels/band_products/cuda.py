"""The CUDA backend: chooses the kernel and its launch by shapes alone; the kernels are in simt.cu and tensor_core.cu.

Q, K, V are read in place if their last dimension is contiguous and one stride describes their batch dimensions, as in
slices of (batch, heads, length, dim) along the length; anything else, and a band that is not contiguous, is copied
first.
"""

import functools
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from bandrank_kernels.cuda import C_TYPES, dtype_name, read_source
from bandrank_kernels.launch import (
    DEFAULT_SHARED_BYTES,
    VECTOR_BYTES,
    Kernel,
    Launch,
    device_capability,
    is_vectorizable,
    launch,
    plan_launch,
    struct_layout,
)

Family = Literal["simt", "tensor_core"]
Product = Literal["band_qk", "band_pv"]

DTYPES = tuple(getattr(torch, name) for name in C_TYPES)  # float64 for gradcheck on a GPU
# struct BandParams of band.cuh, which a test compares byte by byte.
PARAMS = struct_layout(
    addresses="left right band sums",
    longs="left_matrix left_row right_matrix right_row",
    ints="length window dim num_tiles num_parts staged",
)

TENSOR_CORE_CAPABILITY = (8, 0)  # bfloat16 and m16n8k16
# The sizes of blocks, as in the two sources.
SLICE_DIMS = 32
MOST_SLICES = 4  # of a row on tensor cores: a warp holds the sums of 16 rows in registers
THREADS: dict[Family, int] = {"simt": 256, "tensor_core": 128}
TILE_ROWS: dict[Family, int] = {"simt": 32, "tensor_core": 64}
SIMT_COLUMNS = 32

MOST_ROWS = 2**29  # rows and columns are 32-bit numbers in the kernels, offsets 64-bit


@functools.cache
def source(family: Family) -> str:
    """The text of one family of kernels: simt.cu runs on every GPU, tensor_core.cu where tensor cores can."""
    return read_source("cuda/primitives.cuh", "band_products/band.cuh", f"band_products/{family}.cu")


def kernel(product: Product, dtype: torch.dtype, slices: int | None) -> Kernel:
    """The kernel of a product: on tensor cores for rows of `slices` slices of 32 dims, without them if that is None."""
    c_type = C_TYPES[dtype_name(dtype)]
    if slices is None:
        return Kernel(source("simt"), f"{product}_simt<{c_type}>")
    return Kernel(source("tensor_core"), f"{product}_mma<{c_type}, {slices}>")


def instances(family: Family) -> list[Kernel]:
    """All kernels of one family that a plan can choose."""
    slices = [None] if family == "simt" else range(1, MOST_SLICES + 1)
    dtypes = [dtype for dtype in DTYPES if family == "simt" or dtype.itemsize == 2]
    products: tuple[Product, ...] = ("band_qk", "band_pv")
    return [kernel(product, dtype, number) for product in products for dtype in dtypes for number in slices]


def plan(
    product: Product,
    left: Tensor,
    right: Tensor,
    band: Tensor,
    *,
    sums: Tensor | None = None,
    capability: tuple[int, int],
) -> Launch:
    """The launch of one product: "band_qk" reads Q (`left`) and K (`right`) and writes `band`; "band_pv" reads `band`
    and V (both `left` and `right`) and writes `sums`.

    The result is contiguous and not empty. Raises ValueError if a row or column number would not fit in 32 bits.
    """
    *_, length, columns = band.shape
    if max(length, columns) > MOST_ROWS:
        raise ValueError(
            f"a band of the CUDA kernels has at most {MOST_ROWS} rows and columns, got {length} x {columns}"
        )
    left, right = _matrices(left), _matrices(right)
    num_matrices, _, dim = left.shape
    slices, rest = divmod(dim, SLICE_DIMS)
    whole = left.dtype.itemsize == 2 and 1 <= slices <= MOST_SLICES and rest == 0
    family: Family = "simt"
    if whole and capability >= TENSOR_CORE_CAPABILITY and is_vectorizable(left) and is_vectorizable(right):
        family = "tensor_core"
        staged = TILE_ROWS[family] * columns * band.element_size() + VECTOR_BYTES
        shared, num_parts = staged if sums is None and staged <= DEFAULT_SHARED_BYTES else 0, 1
    else:
        pitch = SLICE_DIMS * max(left.element_size(), 4) + VECTOR_BYTES  # of rows of sums in shared memory
        shared = (2 * TILE_ROWS[family] + SIMT_COLUMNS - 1) * pitch
        num_parts = -(-columns // SIMT_COLUMNS) if sums is None else -(-dim // SLICE_DIMS)
    num_tiles = -(-length // TILE_ROWS[family])
    return plan_launch(
        kernel(product, left.dtype, slices if family == "tensor_core" else None),
        blocks=num_matrices * num_tiles * num_parts,
        threads=THREADS[family],
        shared_bytes=shared,
        layout=PARAMS,
        left=left,
        right=right,
        band=band,
        sums=sums,
        left_matrix=left.stride(0),
        left_row=left.stride(1),
        right_matrix=right.stride(0),
        right_row=right.stride(1),
        length=length,
        window=columns // 2,
        dim=dim,
        num_tiles=num_tiles,
        num_parts=num_parts,
        staged=shared > 0,
    )


def _matrices(rows: Tensor) -> Tensor:
    """(num_matrices, length, dim), with contiguous rows."""
    matrices = rows.reshape(-1, *rows.shape[-2:])
    return matrices if matrices.stride(-1) == 1 else matrices.contiguous()


def band_qk(query: Tensor, key: Tensor, window: int) -> Tensor:
    """(..., length, 2 * window + 1)."""
    band = query.new_empty((*query.shape[:-1], 2 * window + 1))
    if query.shape[-1] == 0:
        return band.zero_()
    if band.numel():
        launch(plan("band_qk", query, key, band, capability=device_capability(band.device)), band.device)
    return band


def band_pv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    sums = value.new_empty(value.shape)
    if sums.numel():
        capability = device_capability(sums.device)
        launch(plan("band_pv", value, value, band.contiguous(), sums=sums, capability=capability), sums.device)
    return sums


def band_ptv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    return band_pv(transposed(band), value)


def transposed(band: Tensor) -> Tensor:
    """(..., length, columns), a view: entry (k, j) is (k + j - window, 2 * window - j) of the band, 0 outside it."""
    columns = band.shape[-1]
    padded = pad(band, (0, 0, columns // 2, columns // 2)).contiguous()
    # Entry (k, j) lies at (k + j) * columns + columns - 1 - j of the padded band: a step of columns - 1 along j.
    strides = (*padded.stride()[:-2], columns, columns - 1)
    return padded.as_strided(band.shape, strides, columns - 1)
