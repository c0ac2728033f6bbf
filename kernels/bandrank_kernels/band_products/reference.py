"""The slow, obvious backend: the formulas column by column, in the dtype of the inputs, float64 too."""

from collections.abc import Iterator

from torch import Tensor


def _columns(length: int, window: int) -> Iterator[tuple[int, slice, slice]]:
    """Each column of the band with the rows it is inside the sequence for, and the rows it pairs them with."""
    for column in range(2 * window + 1):
        offset = column - window
        first, end = max(0, -offset), min(length, length - offset)
        if first < end:
            yield column, slice(first, end), slice(first + offset, end + offset)


def band_qk(query: Tensor, key: Tensor, window: int) -> Tensor:
    """(..., length, 2 * window + 1)."""
    band = query.new_zeros((*query.shape[:-1], 2 * window + 1))
    for column, rows, others in _columns(query.shape[-2], window):
        band[..., rows, column] = (query[..., rows, :] * key[..., others, :]).sum(-1)
    return band


def band_pv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    out = value.new_zeros(value.shape)
    for column, rows, others in _columns(value.shape[-2], band.shape[-1] // 2):
        out[..., rows, :] += band[..., rows, column, None] * value[..., others, :]
    return out


def band_ptv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    out = value.new_zeros(value.shape)
    for column, rows, others in _columns(value.shape[-2], band.shape[-1] // 2):
        out[..., others, :] += band[..., rows, column, None] * value[..., rows, :]
    return out
