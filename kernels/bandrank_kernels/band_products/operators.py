"""The two products inside a band that make up attention in the sparse cross-encoder's paper, and their kernels (Schlatt
et al. 2024, section 3.2). The fused attention needs neither; the benchmark's form of the paper uses both.
"""

import functools
from collections.abc import Iterator
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, HALF_DTYPES, Dtype, read_source
from bandrank_kernels.dispatch import Backend, choose_backend
from bandrank_kernels.launch import (
    DEFAULT_SHARED_BYTES,
    TENSOR_CORES,
    VECTOR_BYTES,
    Kernel,
    Launch,
    device_capability,
    in_pieces,
    launch,
    plan_launch,
    struct_layout,
)

Product = Literal["band_qk", "band_pv"]

# struct BandParams of band.cu.
PARAMS = struct_layout(
    addresses="left right band sums",
    longs="left_matrix left_row right_matrix right_row",
    ints="length window num_tiles staged",
)
THREADS, TILE_ROWS = 128, 64  # of a block, as in the source
DIMS = (32, 64)


@functools.cache
def variants() -> dict[tuple[Product, torch.dtype, int], Kernel]:
    """All kernels, by the product, the dtype and the dims of a row."""
    source = read_source("cuda/primitives.cuh", "band_products/band.cu")
    products: tuple[Product, ...] = ("band_qk", "band_pv")

    def kernel(name: Product, dtype: Dtype, dim: int) -> Kernel:
        return Kernel(source, f"{name}<{C_TYPES[dtype]}, {dim // 32}>")

    return {
        (name, getattr(torch, dtype), dim): kernel(name, dtype, dim)
        for name, dtype, dim in product(products, HALF_DTYPES, DIMS)
    }


def band_qk(query: Tensor, key: Tensor, window: int, *, backend: Backend = "auto") -> Tensor:
    """Scores of each row with the rows at most `window` positions away: Q K^T inside the band (the paper's boxed dot).

    query, key: (..., length, dim), of one shape, dtype and device.  Returns (..., length, 2 * window + 1):
    band[i, j] = query[i] . key[i + j - window], and 0, which is not a score, where that key lies outside the sequence.
    Differentiable in plain torch. Raises ValueError if the two do not fit together or window < 0, BackendUnavailable.
    """
    _check("query and key", query, key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have the same dim, got {query.shape[-1]} and {key.shape[-1]}")
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    shape = *query.shape[:-1], 2 * window + 1
    if _launches(backend, query, key):
        band = query.new_empty(shape)
        if band.numel():
            launch(plan("band_qk", query, key, band), band.device)
        return band
    band = query.new_zeros(shape)
    for column, rows, others in _columns(query.shape[-2], window):
        band[..., rows, column] = (_wide(query[..., rows, :]) * _wide(key[..., others, :])).sum(-1)
    return band


def band_pv(band: Tensor, value: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Weighted sums of the rows at most `window` positions away: P V of a band P (the paper's circled dot).

    band: (..., length, 2 * window + 1); entries outside the sequence are not read.  value: (..., length, dim).
    Returns (..., length, dim): out[i] = sum over j of band[i, j] * value[i + j - window].
    Differentiable in plain torch. Raises ValueError if the two do not fit together or the band has an even number of
    columns, BackendUnavailable.
    """
    _check("band and value", band, value)
    if band.shape[-1] % 2 == 0:
        raise ValueError(f"a band has 2 * window + 1 columns, an odd number; got {band.shape[-1]}")
    if _launches(backend, band, value):
        sums = value.new_empty(value.shape)
        if sums.numel():
            launch(plan("band_pv", value, value, band.contiguous(), sums=sums), sums.device)
        return sums
    sums = _wide(value.new_zeros(value.shape))
    for column, rows, others in _columns(value.shape[-2], band.shape[-1] // 2):
        sums[..., rows, :] += _wide(band[..., rows, column, None]) * value[..., others, :]
    return sums.to(value.dtype)


def plan(name: Product, left: Tensor, right: Tensor, band: Tensor, *, sums: Tensor | None = None) -> Launch:
    """The launch of one product: "band_qk" reads Q (`left`) and K (`right`) and writes `band`; "band_pv" reads `band`
    and V (both `left` and `right`) and writes `sums`. The result is contiguous and not empty.

    Rows are read in place if each starts at a 16-byte address and one stride describes their batch dimensions, as in
    slices of (batch, heads, length, dim) along the length; others are copied first.
    """
    left, right = _matrices(left), _matrices(right)
    num_matrices, length, dim = left.shape
    columns, num_tiles = band.shape[-1], -(-length // TILE_ROWS)
    staged = TILE_ROWS * columns * band.element_size() + VECTOR_BYTES
    shared = staged if sums is None and staged <= DEFAULT_SHARED_BYTES else 0
    return plan_launch(
        variants()[name, left.dtype, dim],
        blocks=num_matrices * num_tiles,
        threads=THREADS,
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
        num_tiles=num_tiles,
        staged=shared > 0,
    )


def _launches(backend: Backend, left: Tensor, right: Tensor) -> bool:
    """Whether the kernels run, and not plain torch. Raises BackendUnavailable, ValueError."""
    unsupported = None
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        unsupported = "the kernels have no gradient"
    elif ("band_qk", right.dtype, right.shape[-1]) not in variants():
        unsupported = f"rows must be float16 or bfloat16 of 32 or 64 numbers, got {right.dtype} of {right.shape[-1]}"
    elif right.is_cuda and device_capability(right.device) < TENSOR_CORES:
        unsupported = "the card must have compute capability 8.0 or higher"
    return choose_backend(backend, right.device, unsupported=unsupported) == "cuda"


def _check(names: str, left: Tensor, right: Tensor) -> None:
    shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
    if left.dim() < 2 or right.dim() < 2:
        raise ValueError(f"{names} must have at least 2 dimensions, got {shapes}")
    if left.shape[:-1] != right.shape[:-1]:
        raise ValueError(f"{names} must agree in all dimensions but the last, got {shapes}")
    if left.dtype != right.dtype or not left.is_floating_point():
        raise ValueError(f"{names} must be of one floating-point dtype, got {left.dtype} and {right.dtype}")
    if left.device != right.device:
        raise ValueError(f"{names} must be on one device, got {left.device} and {right.device}")


def _matrices(rows: Tensor) -> Tensor:
    """(num_matrices, length, dim), rows in whole 16-byte pieces."""
    matrices = rows.reshape(-1, *rows.shape[-2:])
    return in_pieces(matrices)


def _columns(length: int, window: int) -> Iterator[tuple[int, slice, slice]]:
    """Each column of the band, the rows that have an entry in it, and the rows that these entries pair them with."""
    for column in range(2 * window + 1):
        offset = column - window
        first, end = max(0, -offset), min(length, length - offset)
        if first < end:
            yield column, slice(first, end), slice(first + offset, end + offset)


def _wide(rows: Tensor) -> Tensor:
    """The rows in the dtype of their sums."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
