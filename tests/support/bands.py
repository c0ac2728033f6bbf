"""Random bands, which are NaN outside the sequence, and bands as dense matrices."""

import torch
from torch import Tensor

WINDOWS = [0, 1, 3, 4, 9, 16, 64]
LENGTHS = [0, 1, 2, 15, 16, 17, 33, 64, 65, 130, 300]


def outside(length: int, window: int) -> Tensor:
    """Whether each entry of a band belongs to no pair of rows, (length, 2 * window + 1) bool."""
    other = torch.arange(length)[:, None] + torch.arange(-window, window + 1)
    return (other < 0) | (other >= length)


def random_rows(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same for every dtype up to rounding."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_band(*batch: int, length: int, window: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random band with NaN outside the sequence, where no code may read."""
    band = random_rows(*batch, length, 2 * window + 1, dtype=dtype, seed=1)
    return band.masked_fill_(outside(length, window), torch.nan)


def dense(band: Tensor) -> Tensor:
    """Spreads a band, (..., length, columns), over the diagonals of zeros, (..., length, length), entry by entry."""
    length, columns = band.shape[-2:]
    matrix = band.new_zeros((*band.shape[:-1], length))
    for row in range(length):
        for column in range(columns):
            other = row + column - columns // 2
            if 0 <= other < length:
                matrix[..., row, other] = band[..., row, column]
    return matrix
