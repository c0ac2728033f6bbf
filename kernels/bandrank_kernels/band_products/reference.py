"""The backend in plain torch: the formulas column by column of the band, in memory linear in it.

Sums have the dtype of the inputs, or float32 if that has 16 bits.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def _columns(length: int, window: int) -> Iterator[tuple[int, slice, slice]]:
    """Each column of the band, the rows that have an entry in it, and the rows that these entries pair them with."""
    for column in range(2 * window + 1):
        offset = column - window
        first, end = max(0, -offset), min(length, length - offset)
        if first < end:
            yield column, slice(first, end), slice(first + offset, end + offset)


def _wide(rows: Tensor) -> Tensor:
    return rows.to(torch.promote_types(rows.dtype, torch.float32))


def band_qk(query: Tensor, key: Tensor, window: int) -> Tensor:
    """(..., length, 2 * window + 1)."""
    band = query.new_zeros((*query.shape[:-1], 2 * window + 1))
    for column, rows, others in _columns(query.shape[-2], window):
        band[..., rows, column] = (_wide(query[..., rows, :]) * _wide(key[..., others, :])).sum(-1)
    return band


def band_pv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    out = _wide(value.new_zeros(value.shape))
    for column, rows, others in _columns(value.shape[-2], band.shape[-1] // 2):
        out[..., rows, :] += _wide(band[..., rows, column, None]) * value[..., others, :]
    return out.to(value.dtype)


def band_ptv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    out = _wide(value.new_zeros(value.shape))
    for column, rows, others in _columns(value.shape[-2], band.shape[-1] // 2):
        out[..., others, :] += _wide(band[..., rows, column, None]) * value[..., rows, :]
    return out.to(value.dtype)
