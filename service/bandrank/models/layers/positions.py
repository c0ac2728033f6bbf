"""Positions: interpolation of learnt tables to longer texts (Schlatt et al. 2024, arXiv 2312.17649, section 3.5), and
rotary positions (Su et al. 2021, arXiv 2104.09864).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CPU_BLOCK_ROWS = 128  # rows that are turned at once on a CPU, so that what is between the operations stays in the cache


@dataclass(frozen=True)
class Rotary:
    """Turns queries and keys, so that their products depend on the distance of their rows.

    Numbers i and i + head_dim / 2 of a head are a pair, turned by position * base ** (-2 i / head_dim) / factor in
    float32, as in GPT-NeoX and Hugging Face's checkpoints.
    factor: by which positions are interpolated to longer texts than were trained (Chen et al. 2023, arXiv 2306.15595).
    """

    base: float = 10_000.0
    factor: float = 1.0

    def turn(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """(total, 3, num_heads, head_dim) with queries and keys turned. positions: (total,).

        qkv: the same shape; on a CPU, unless gradients are recorded, it is what is returned, turned in place.
        """
        if torch.is_grad_enabled() or qkv.device.type != "cpu":
            return torch.cat([self.turn_heads(qkv[:, :2].flatten(1, 2), positions).view_as(qkv[:, :2]), qkv[:, 2:]], 1)
        for start in range(0, len(qkv), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            heads = qkv[block, :2]
            heads.copy_(self.turn_heads(heads.flatten(1, 2), positions[block]).view_as(heads))
        return qkv

    def turn_heads(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(total, n, head_dim) the same for n heads of queries or keys. heads: (total, n, head_dim)."""
        size = heads.shape[-1]
        # In this order of operations, as the models were trained: at position 8,000 another rounding turns visibly.
        frequencies = 1.0 / self.base ** (torch.arange(0, size, 2, device=heads.device) / size) / self.factor
        angles = (positions[:, None] * frequencies)[:, None]  # (total, 1, head_dim / 2)
        cos, sin = angles.cos(), angles.sin()
        left, right = heads.float().chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(heads.dtype)


def trained_rows(table: Tensor) -> int:
    """The number of leading rows of a learnt position table that are well trained, as in the paper's code.

    A ridge regression (alpha 1) predicts each row from the five before it. It is fitted on the rows before a cut and
    tested on those after; the cut moves down by 5 until the error has risen three times in a row.
    table: (num_positions, hidden_size).
    """
    history = 5
    cut = len(table)
    rows = table.double()
    previous, risen = float("inf"), 0
    for cut in reversed(range(history + 1, len(table) - history - 1, history)):
        error = _ridge_error(rows[:cut], rows[cut:], history)
        risen = risen + 1 if error > previous else 0
        previous = error
        if risen == 3:
            break
    return cut


def _ridge_error(train: Tensor, test: Tensor, history: int) -> float:
    """Mean squared error on `test` of a ridge regression of rows on `history` rows before them, fitted on `train`."""

    def pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([rows[i : len(rows) - history + i] for i in range(history)], 1), rows[history:]

    inputs, targets = pairs(train)
    mean_in, mean_out = inputs.mean(0), targets.mean(0)
    centred = inputs - mean_in
    # Fewer rows than inputs (5 * hidden_size): solve the dual form, whose matrix is rows x rows.
    gram = centred @ centred.T + torch.eye(len(centred), dtype=centred.dtype)
    weights = centred.T @ torch.linalg.solve(gram, targets - mean_out)
    inputs, targets = pairs(test)
    return float(((inputs - mean_in) @ weights + mean_out - targets).square().mean())


def interpolate_positions(table: Tensor, num_positions: int) -> Tensor:
    """(num_positions, hidden_size) the trained part of a position table, interpolated linearly to `num_positions` rows.

    Raises ValueError if the table has more rows than `num_positions`, or fewer than 20.
    """
    if not 20 <= len(table) <= num_positions:
        raise ValueError(f"cannot interpolate a table of {len(table)} positions to {num_positions}")
    kept = trained_rows(table)
    source = torch.arange(num_positions, dtype=torch.float64) * ((kept - 1) / (num_positions - 1))
    low = source.floor().long()
    high = source.ceil().long()
    return torch.lerp(table[low], table[high], (source - low)[:, None].to(table.dtype))
