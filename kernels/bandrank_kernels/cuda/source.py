"""CUDA text out of the package's files."""

from functools import cache
from importlib import resources

PACKAGE = "bandrank_kernels"


@cache
def read_source(*files: str) -> str:
    """The named files of this package, one after the other, as one translation unit.

    files: paths below `bandrank_kernels`, such as "cuda/primitives.cuh". They include nothing of ours: CuPy's cache of
    compiled kernels is keyed by this text alone, and an edited include would run the old kernel.
    """
    return "\n".join(_read(path) for path in files)


def _read(path: str) -> str:
    return resources.files(PACKAGE).joinpath(path).read_text(encoding="utf-8")
