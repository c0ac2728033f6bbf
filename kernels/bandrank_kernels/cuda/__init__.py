"""CUDA kernels as text, and what their launchers share."""

from bandrank_kernels.cuda.source import read_source

__all__ = ["read_source"]
