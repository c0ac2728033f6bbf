"""CUDA source text from the package's files."""

from functools import cache
from importlib import resources

PACKAGE = "bandrank_kernels"


@cache
def read_source(*files: str) -> str:
    """The named files of this package, one after the other, as one translation unit.

    files: paths below `bandrank_kernels`, such as "cuda/primitives.cuh". They include none of these
    files: CuPy caches compiled kernels by this text alone, and would run the old kernel after an edit of an include.
    """
    return "\n".join(_read(path) for path in files)


def _read(path: str) -> str:
    return resources.files(PACKAGE).joinpath(path).read_text(encoding="utf-8")
