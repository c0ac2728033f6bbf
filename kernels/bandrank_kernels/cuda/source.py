"""CUDA source text from the package's files, and the dtypes that kernels are built for."""

from functools import cache
from importlib import resources
from typing import Literal, cast

import torch

Dtype = Literal["float16", "bfloat16", "float32"]  # of kernels
HALF_DTYPES: tuple[Dtype, ...] = ("float16", "bfloat16")
C_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float"}


def dtype_name(dtype: torch.dtype) -> Dtype:
    """The dtype's name, which identifies kernels; callers refuse the name of a dtype without kernels."""
    return cast("Dtype", str(dtype).removeprefix("torch."))


def is_half(dtype: torch.dtype) -> bool:
    """Whether it is one of `HALF_DTYPES`."""
    return dtype_name(dtype) in HALF_DTYPES


@cache
def read_source(*files: str) -> str:
    """The named files of this package, one after the other, as one translation unit.

    files: paths below `bandrank_kernels`, such as "cuda/primitives.cuh". They do not include each other: CuPy caches
    compiled kernels by this text alone, and would run the old kernel after an edit of an include.
    """
    folder = resources.files("bandrank_kernels")
    return "\n".join(folder.joinpath(path).read_text(encoding="utf-8") for path in files)
