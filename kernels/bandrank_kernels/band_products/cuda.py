"""The CUDA backend: which kernel runs with what, decided here on shapes alone; simt.cu and tensor_core.cu say how.

Q, K, V are read where they lie if their last dimension is contiguous and at most two strides describe their batch
dimensions, as in (batch, heads, length, dim) views of (batch, length, heads, dim); anything else, and a band that is
not contiguous, is copied first. Rows in whole 16-byte pieces are read 16 bytes at a time, others element by element.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, dtype_name, read_source
from bandrank_kernels.launch import (
    DEFAULT_SHARED_BYTES,
    VECTOR_BYTES,
    Kernel,
    Launch,
    device_capability,
    is_vectorizable,
    launch,
    struct_of,
)

Family = Literal["simt", "tensor_core"]

DTYPES = tuple(getattr(torch, name) for name in C_TYPES)  # float64 for gradcheck on a GPU
# struct Rows and struct BandParams of band.cuh, which a test compares byte by byte.
ROWS = np.dtype([("first", np.uint64), ("outer", np.int64), ("inner", np.int64), ("row", np.int64)], align=True)
PARAMS = np.dtype(
    [
        ("left", ROWS),
        ("right", ROWS),
        ("band", np.uint64),
        ("sums", np.uint64),
        ("length", np.int32),
        ("window", np.int32),
        ("dim", np.int32),
        ("num_inner", np.int32),
        ("num_tiles", np.int32),
        ("num_parts", np.int32),
        ("staged", np.int32),
    ],
    align=True,
)

TENSOR_CORE_CAPABILITY = (8, 0)  # bfloat16 and m16n8k16
# The sizes of blocks, as in the two sources.
SLICE_DIMS = 32
MOST_SLICES = 4  # of a row on tensor cores: a warp holds the sums of 16 rows in registers
SIMT_THREADS, SIMT_ROWS, SIMT_COLUMNS = 256, 32, 32
TENSOR_CORE_THREADS, TENSOR_CORE_ROWS = 128, 64

MOST_ROWS = 2**29  # rows and columns are 32-bit numbers in the kernels, offsets 64-bit


@functools.cache
def source(family: Family) -> str:
    """The text of one family of kernels: simt.cu runs everything everywhere, tensor_core.cu what tensor cores can."""
    return read_source("cuda/primitives.cuh", "band_products/band.cuh", f"band_products/{family}.cu")


def instances(family: Family) -> list[Kernel]:
    """All kernels of one family that a plan can choose."""
    if family == "tensor_core":
        dtypes = [dtype for dtype in DTYPES if dtype.itemsize == 2]
        arguments = [(dtype, slices) for dtype in dtypes for slices in range(1, MOST_SLICES + 1)]
    else:
        arguments = [(dtype, count) for dtype in DTYPES for count in (VECTOR_BYTES // dtype.itemsize, 1)]
    suffix = "mma" if family == "tensor_core" else "simt"
    scores = [_kernel(family, f"band_qk_{suffix}", dtype, number) for dtype, number in arguments]
    sides = (False, True)
    sums = [
        _kernel(family, f"band_sums_{suffix}", dtype, number, side) for dtype, number in arguments for side in sides
    ]
    return scores + sums


@dataclass(frozen=True)
class Rows:
    """Matrices of rows as the kernels address them: matrix m is at (m // num_inner, m % num_inner)."""

    tensor: Tensor
    outer: int
    inner: int

    @property
    def struct(self) -> tuple[int, int, int, int]:
        """The fields of ROWS, in order: an address, then strides in elements."""
        return self.tensor.data_ptr(), self.outer, self.inner, self.tensor.stride(-2)


def lay_out(tensors: Sequence[Tensor]) -> tuple[int, list[Rows]]:
    """num_inner, and tensors of one batch shape with their two batch strides. Copies what two cannot describe."""
    contiguous = [_with_contiguous_rows(tensor) for tensor in tensors]
    sizes, strides = _merge(contiguous)
    if len(sizes) > 2:
        contiguous = [tensor.contiguous() for tensor in tensors]
        sizes, strides = _merge(contiguous)
    sizes, strides = [1, 1, *sizes], [(0,) * len(tensors)] * 2 + strides
    return sizes[-1], [
        Rows(tensor, outer, inner) for tensor, outer, inner in zip(contiguous, strides[-2], strides[-1], strict=True)
    ]


def _with_contiguous_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _merge(tensors: Sequence[Tensor]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Batch dimensions merged wherever one stride does for two of them, in all tensors at once."""
    sizes: list[int] = []
    strides: list[tuple[int, ...]] = []
    for dimension, size in enumerate(tensors[0].shape[:-2]):
        steps = tuple(tensor.stride(dimension) for tensor in tensors)
        if size == 1:
            continue
        if sizes and all(before == step * size for before, step in zip(strides[-1], steps, strict=True)):
            sizes[-1] *= size
            strides[-1] = steps
        else:
            sizes.append(size)
            strides.append(steps)
    return sizes, strides


def choose_family(rows: Sequence[Rows], capability: tuple[int, int]) -> Family:
    """Tensor cores for 16-bit rows of 32, 64, 96 or 128 dims in whole 16-byte pieces."""
    tensor = rows[0].tensor
    slices, rest = divmod(tensor.shape[-1], SLICE_DIMS)
    fits = tensor.dtype.itemsize == 2 and 1 <= slices <= MOST_SLICES and rest == 0
    if fits and capability >= TENSOR_CORE_CAPABILITY and all(is_vectorizable(row.tensor) for row in rows):
        return "tensor_core"
    return "simt"


def plan_qk(query: Tensor, key: Tensor, band: Tensor, capability: tuple[int, int]) -> Launch:
    """The launch that writes `band`, contiguous and not empty."""
    num_inner, rows = lay_out([query, key])
    columns = band.shape[-1]
    staged_bytes = TENSOR_CORE_ROWS * columns * band.element_size() + VECTOR_BYTES
    family = choose_family(rows, capability)
    if family == "simt":
        kernel = _kernel("simt", "band_qk_simt", query.dtype, _elements_at_once(rows))
        shared = (2 * SIMT_ROWS + SIMT_COLUMNS - 1) * _pitch_bytes(query.dtype)
        parts = -(-columns // SIMT_COLUMNS)
    else:
        kernel = _kernel("tensor_core", "band_qk_mma", query.dtype, query.shape[-1] // SLICE_DIMS)
        shared = staged_bytes if staged_bytes <= DEFAULT_SHARED_BYTES else 0
        parts = 1
    return _launch(family, kernel, parts=parts, shared=shared, band=band, rows=rows, num_inner=num_inner)


def plan_sums(band: Tensor, value: Tensor, sums: Tensor, capability: tuple[int, int], *, transposed: bool) -> Launch:
    """The launch that writes `sums`, contiguous and not empty."""
    band = band.contiguous()
    num_inner, rows = lay_out([value])
    family = choose_family(rows, capability)
    if family == "simt":
        kernel = _kernel("simt", "band_sums_simt", value.dtype, _elements_at_once(rows), transposed)
        shared = (2 * SIMT_ROWS + SIMT_COLUMNS - 1) * _pitch_bytes(value.dtype)
        parts = -(-value.shape[-1] // SLICE_DIMS)
    else:
        kernel = _kernel("tensor_core", "band_sums_mma", value.dtype, value.shape[-1] // SLICE_DIMS, transposed)
        shared, parts = 0, 1
    return _launch(family, kernel, parts=parts, shared=shared, band=band, rows=rows, num_inner=num_inner, sums=sums)


def _kernel(family: Family, name: str, dtype: torch.dtype, *arguments: int | bool) -> Kernel:
    template = ", ".join([C_TYPES[dtype_name(dtype)], *(str(argument).lower() for argument in arguments)])
    return Kernel(source(family), f"{name}<{template}>")


def _elements_at_once(rows: Sequence[Rows]) -> int:
    size = rows[0].tensor.element_size()
    return VECTOR_BYTES // size if all(is_vectorizable(row.tensor) for row in rows) else 1


def _pitch_bytes(dtype: torch.dtype) -> int:
    """The distance between rows of `SLICE_DIMS` sums in shared memory."""
    return SLICE_DIMS * max(dtype.itemsize, 4) + VECTOR_BYTES


def _launch(
    family: Family,
    kernel: Kernel,
    *,
    parts: int,
    shared: int,
    band: Tensor,
    rows: Sequence[Rows],
    num_inner: int,
    sums: Tensor | None = None,
) -> Launch:
    *matrices, length, columns = band.shape
    if max(length, columns) > MOST_ROWS:
        raise ValueError(
            f"a band of the CUDA kernels has at most {MOST_ROWS} rows and columns, got {length} x {columns}"
        )
    tiles = -(-length // (SIMT_ROWS if family == "simt" else TENSOR_CORE_ROWS))
    params = struct_of(
        PARAMS,
        left=rows[0].struct,
        right=rows[-1].struct,
        band=band.data_ptr(),
        sums=0 if sums is None else sums.data_ptr(),
        length=length,
        window=columns // 2,
        dim=rows[0].tensor.shape[-1],
        num_inner=num_inner,
        num_tiles=tiles,
        num_parts=parts,
        staged=shared > 0,
    )
    return Launch(
        kernel=kernel,
        blocks=math.prod(matrices) * tiles * parts,
        threads=SIMT_THREADS if family == "simt" else TENSOR_CORE_THREADS,
        params=params,
        shared_bytes=shared,
        holds=tuple(tensor for tensor in (band, sums, *(row.tensor for row in rows)) if tensor is not None),
    )


def band_qk(query: Tensor, key: Tensor, window: int) -> Tensor:
    """(..., length, 2 * window + 1)."""
    band = query.new_empty((*query.shape[:-1], 2 * window + 1))
    if query.shape[-1] == 0:
        return band.zero_()
    if band.numel():
        launch(plan_qk(query, key, band, device_capability(band.device)), band.device)
    return band


def band_pv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    return _sums(band, value, transposed=False)


def band_ptv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    return _sums(band, value, transposed=True)


def _sums(band: Tensor, value: Tensor, *, transposed: bool) -> Tensor:
    sums = value.new_empty(value.shape)
    if sums.numel():
        plan = plan_sums(band, value, sums, device_capability(sums.device), transposed=transposed)
        launch(plan, sums.device)
    return sums
