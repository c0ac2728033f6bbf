"""CUDA source text and the dtypes of kernels, which all launchers share."""

from bandrank_kernels.cuda.source import C_TYPES, HALF_DTYPES, Dtype, dtype_name, is_half, read_source

__all__ = ["C_TYPES", "HALF_DTYPES", "Dtype", "dtype_name", "is_half", "read_source"]
