"""Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

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
