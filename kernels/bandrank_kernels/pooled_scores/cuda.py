"""The CUDA backend: plans the one launch of pooled_scores.cu from shapes alone."""

import functools
from typing import Literal, get_args

import torch
from torch import Tensor

from bandrank_kernels.cuda import C_TYPES, HALF_DTYPES, dtype_name, is_half, read_source
from bandrank_kernels.launch import (
    TENSOR_CORES,
    Kernel,
    Launch,
    device_capability,
    in_pieces,
    launch,
    plan_launch,
    struct_layout,
)

FILE = "pooled_scores/pooled_scores.cu"
# struct PooledParams of the source.
PARAMS = struct_layout(addresses="rows weight bias vector constant out", longs="num_rows row_stride", ints="inputs")

# As in the source.
ROWS_PER_BLOCK = 16
DEPTH = 32
HeadActivation = Literal["tanh", "gelu", "relu"]
FLOAT_BYTES = 4
MAX_SIZE = 384  # a block reads the whole weight: beyond this, a product that spreads it over the card takes less time


def why_unsupported(dtype: torch.dtype, inputs: int, outputs: int, device: torch.device) -> str | None:
    """Why the kernel cannot run, as a clause for an error message; None if it can."""
    if device.type == "cuda" and device_capability(device) < TENSOR_CORES:
        return "the GPU is older than compute capability {}.{}".format(*TENSOR_CORES)
    if not is_half(dtype):
        return f"rows must be float16 or bfloat16, got {dtype}"
    if any(size % DEPTH or not 0 < size <= MAX_SIZE for size in (inputs, outputs)):
        return (
            f"the layer's inputs and outputs must be multiples of {DEPTH} up to {MAX_SIZE}, got {inputs} and {outputs}"
        )
    return None


@functools.cache
def kernel(dtype: torch.dtype, activation: HeadActivation) -> Kernel:
    """The kernel for rows and weights of a dtype, and for an activation."""
    source = read_source("cuda/primitives.cuh", FILE)
    return Kernel(source, f"pooled_scores<{C_TYPES[dtype_name(dtype)]}, {get_args(HeadActivation).index(activation)}>")


def instances() -> list[Kernel]:
    """All kernels that `plan` can choose."""
    return [kernel(getattr(torch, name), activation) for name in HALF_DTYPES for activation in get_args(HeadActivation)]


def plan(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    vector: Tensor,
    constant: Tensor,
    *,
    activation: HeadActivation,
    out: Tensor,
) -> Launch:
    """The launch that writes `out`, (n,) float32, not empty. Rows are copied unless 16 bytes can be read at once."""
    rows = in_pieces(rows)
    outputs, inputs = weight.shape
    return plan_launch(
        kernel(rows.dtype, activation),
        blocks=-(-len(rows) // ROWS_PER_BLOCK),
        threads=outputs,
        shared_bytes=outputs // DEPTH * ROWS_PER_BLOCK * FLOAT_BYTES,
        layout=PARAMS,
        rows=rows,
        weight=weight,
        bias=bias,
        vector=vector,
        constant=constant,
        out=out,
        num_rows=len(rows),
        row_stride=rows.stride(0),
        inputs=inputs,
    )


def pooled_scores(
    rows: Tensor, weight: Tensor, bias: Tensor, vector: Tensor, constant: Tensor, *, activation: HeadActivation
) -> Tensor:
    """(n,) float32."""
    out = bias.new_empty(len(rows))
    if len(rows):
        launch(plan(rows, weight, bias, vector, constant, activation=activation, out=out), out.device)
    return out
