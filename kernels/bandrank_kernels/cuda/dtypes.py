"""Floating-point dtypes in CUDA C++."""

from typing import Literal, cast

import torch

Dtype = Literal["float16", "bfloat16", "float32"]  # of all kernels; those of band products have float64 too
HALF_DTYPES: tuple[Dtype, ...] = ("float16", "bfloat16")
C_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double"}


def dtype_name(dtype: torch.dtype) -> Dtype:
    """The dtype's name, which identifies kernels; callers refuse the name of a dtype without kernels."""
    return cast("Dtype", str(dtype).removeprefix("torch."))
