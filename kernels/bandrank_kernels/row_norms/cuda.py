"""The CUDA backend: plans the one launch of norm_of_sum.cu from shapes alone.

Rows are read in place if their columns are contiguous and each row starts at a 16-byte address; others are copied
first.
"""

import functools
import math
from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, Dtype, dtype_name, read_source
from bandrank_kernels.launch import Kernel, Launch, in_pieces, launch, plan_launch, struct_layout
from bandrank_kernels.row_norms.addend import Addend

FILE = "norm_of_sum.cu"
# struct Addend and struct NormParams of the source.
ADDEND = struct_layout(addresses="rows numbers", longs="num_rows row_stride")
MAX_ADDENDS = 3
NORM = struct_layout(addresses="weight bias out", longs="num_rows", ints="hidden_size", floats="eps")
PARAMS = np.dtype([("addends", ADDEND, MAX_ADDENDS), *((name, NORM[name]) for name in NORM.names or ())], align=True)
NO_ADDEND = (0, 0, 0, 0)

# As in the source.
LANES = 32
COLUMNS = 8  # of a lane in a part, or half as many
ROWS_PER_BLOCK = 4
MAX_PARTS = 4  # a lane then holds 32 columns: more would cost occupancy, and no BERT is wider
MAX_COLUMNS = MAX_PARTS * LANES * COLUMNS


def why_unsupported(dtype: torch.dtype, hidden_size: int) -> str | None:
    """Why the kernel cannot run, as a clause for an error message; None if it can."""
    if dtype_name(dtype) not in get_args(Dtype):
        return f"rows must be float16, bfloat16 or float32, got {dtype}"
    if hidden_size % COLUMNS or not 0 < hidden_size <= MAX_COLUMNS:
        return f"hidden_size must be a multiple of {COLUMNS} up to {MAX_COLUMNS}, got {hidden_size}"
    return None


@functools.cache
def kernel(dtype: torch.dtype, columns: int, num_parts: int, num_addends: int) -> Kernel:
    """The kernel for rows of up to `num_parts` parts, of each of which a lane has `columns` columns."""
    source = read_source("cuda/primitives.cuh", f"row_norms/{FILE}")
    return Kernel(source, f"norm_of_sum<{C_TYPES[dtype_name(dtype)]}, {columns}, {num_parts}, {num_addends}>")


@functools.cache
def parts(hidden_size: int) -> tuple[int, int]:
    """The columns of a lane in a part, and the number of parts: those that leave the fewest lanes idle."""
    choices = [(columns, -(-hidden_size // (LANES * columns))) for columns in (COLUMNS, COLUMNS // 2)]
    return min((choice for choice in choices if choice[1] <= MAX_PARTS), key=math.prod)


def instances() -> list[Kernel]:
    """All kernels that `plan` can choose."""
    chosen = sorted({parts(hidden_size) for hidden_size in range(COLUMNS, MAX_COLUMNS + 1, COLUMNS)})
    return [
        kernel(getattr(torch, name), *sizes, num_addends)
        for name in get_args(Dtype)
        for sizes in chosen
        for num_addends in (2, MAX_ADDENDS)
    ]


def plan(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> Launch:
    """The launch that writes `out`, (total, hidden_size), contiguous and not empty."""
    num_rows, hidden_size = out.shape
    addends = [_readable(addend) for addend in addends]
    weight, bias = in_pieces(weight), in_pieces(bias)
    return plan_launch(
        kernel(out.dtype, *parts(hidden_size), len(addends)),
        blocks=-(-num_rows // ROWS_PER_BLOCK),
        threads=32 * ROWS_PER_BLOCK,
        layout=PARAMS,
        addends=[*(_struct(addend) for addend in addends), *[NO_ADDEND] * (MAX_ADDENDS - len(addends))],
        weight=weight,
        bias=bias,
        out=out,
        num_rows=num_rows,
        hidden_size=hidden_size,
        eps=eps,
        holds=[tensor for addend in addends for tensor in addend if tensor is not None],
    )


def _struct(addend: Addend) -> tuple[int, int, int, int]:
    """The fields of ADDEND, in order."""
    rows, numbers = addend
    return rows.data_ptr(), 0 if numbers is None else numbers.data_ptr(), rows.shape[0], rows.stride(0)


def _readable(addend: Addend) -> Addend:
    rows, numbers = addend
    return Addend(in_pieces(rows), None if numbers is None else numbers.contiguous())


def norm_of_sum(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(total, hidden_size) LayerNorm of the sum."""
    out = weight.new_empty((addends[0].total, len(weight)))
    if out.numel():
        launch(plan(addends, weight, bias, eps, out), out.device)
    return out
