"""The backend in plain torch, for CPU and GPU: batched matrix products of blocks of rows, memory linear in the band.

A block is `height` consecutive rows; their band reaches width = height + 2 * window rows. The product of the two is a
dense (height, width) matrix, of which the band is the slanted part: entry (r, j) of the band is entry (r, r + j) of the
matrix, so that a view with row stride width + 1 is the band. With blocks no lower than the window is wide, the dense
matrices hold at most twice what the band holds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK_ROWS = 32  # rows, where the window is narrower: smaller matrix products cost more in calls than in arithmetic


@dataclass(frozen=True)
class Blocks:
    """Sequences of `length` rows cut into blocks, the last one padded."""

    length: int
    window: int

    @property
    def height(self) -> int:
        return max(1, min(self.length, max(BLOCK_ROWS, 2 * self.window + 1)))

    @property
    def width(self) -> int:
        return self.height + 2 * self.window

    @property
    def count(self) -> int:
        return -(-self.length // self.height)

    @property
    def padding(self) -> int:
        """Rows that the last block lacks."""
        return self.count * self.height - self.length

    def cut(self, rows: Tensor) -> Tensor:
        """(..., length, n) -> (..., count, height, n)."""
        padded = pad(rows, (0, 0, 0, self.padding))
        return padded.reshape(*rows.shape[:-2], self.count, self.height, rows.shape[-1])

    def surround(self, rows: Tensor) -> Tensor:
        """(..., length, n) -> (..., count, width, n): each block with the rows around it, zeros outside."""
        padded = pad(rows, (0, 0, self.window, self.window + self.padding))
        return padded.unfold(-2, self.width, self.height).transpose(-1, -2)

    def slant(self, dense: Tensor) -> Tensor:
        """(..., count, height, width), contiguous -> its band (..., count, height, 2 * window + 1), a view."""
        steps = (*dense.stride()[:-2], self.width + 1, 1)
        return dense.as_strided((*dense.shape[:-1], 2 * self.window + 1), steps)

    def outside(self, device: torch.device) -> Tensor:
        """(count, height, 2 * window + 1) bool: which entries of the band lie outside the sequence."""
        column = torch.arange(2 * self.window + 1, device=device) - self.window
        other = torch.arange(self.count * self.height, device=device)[:, None] + column
        return ((other < 0) | (other >= self.length)).view(self.count, self.height, -1)

    def join(self, blocks: Tensor) -> Tensor:
        """(..., count, height, n) -> (..., length, n), contiguous."""
        return blocks.flatten(-3, -2)[..., : self.length, :].contiguous()


def band_qk(query: Tensor, key: Tensor, window: int) -> Tensor:
    """(..., length, 2 * window + 1)."""
    blocks = Blocks(query.shape[-2], window)
    if query.numel() == 0:
        return query.new_zeros((*query.shape[:-1], 2 * window + 1))
    dense = (blocks.cut(query) @ blocks.surround(key).transpose(-1, -2)).contiguous()
    return blocks.join(blocks.slant(dense).masked_fill(blocks.outside(query.device), 0))


def band_pv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    blocks = Blocks(value.shape[-2], band.shape[-1] // 2)
    if value.numel() == 0:
        return value.new_empty(value.shape)
    dense = value.new_zeros((*value.shape[:-2], blocks.count, blocks.height, blocks.width))
    # Entries outside the sequence are ignored, even NaN.
    blocks.slant(dense).copy_(blocks.cut(band).masked_fill(blocks.outside(band.device), 0))
    return blocks.join(dense @ blocks.surround(value))


def band_ptv(band: Tensor, value: Tensor) -> Tensor:
    """(..., length, dim)."""
    return band_pv(_transpose(band), value)


def _transpose(band: Tensor) -> Tensor:
    """(..., length, columns): entry (k, j) is entry (k + j - window, 2 * window - j), 0 outside the sequence."""
    columns = band.shape[-1]
    window = columns // 2
    padded = pad(band, (0, 0, window, window)).contiguous()
    # Entry (k, j) lies at (k + j) * columns + 2 * window - j of the padded band: a step of columns - 1 along j.
    strides = (*padded.stride()[:-2], columns, columns - 1)
    return padded.as_strided(band.shape, strides, padded.storage_offset() + 2 * window)
