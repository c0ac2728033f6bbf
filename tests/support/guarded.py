"""Outputs around which nothing may be written."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from emulation.compiled import EmulationError
from torch import Tensor

GUARD = 1024  # numbers on either side: as many as a row or a head has at most


@contextmanager
def guarded(*shape: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    """Yields an output full of NaN. Raises EmulationError if the block writes around it."""
    memory = torch.full((math.prod(shape) + 2 * GUARD,), torch.nan, dtype=dtype)
    yield memory[GUARD:-GUARD].view(shape)
    if not (memory[:GUARD].isnan().all() and memory[-GUARD:].isnan().all()):
        raise EmulationError("something was written around the output")
