"""Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

MAX_TABLES = 32  # of a megabyte or a few: two bases in a ModernBERT, one in others, and lengths by powers of two
CPU_BLOCK_ROWS = 128  # rows that are turned at once on a CPU, so that intermediate results stay in the cache


@dataclass(frozen=True)
class Rotary:
    """Turns queries and keys, so that their products depend on the distance of their rows.

    Numbers i and i + head_dim / 2 of a head are a pair, turned by position * base ** (-2 i / head_dim) / factor in
    float32, as in GPT-NeoX and Hugging Face's checkpoints.
    factor: by which positions are interpolated to longer texts than were trained (Chen et al. 2023, arXiv 2306.15595).
    """

    base: float = 10_000.0
    factor: float = 1.0

    @classmethod
    def variant(cls, value: Mapping[str, Any]) -> type["Rotary"]:
        """The class of saved positions, by their fields."""
        if "attention_factor" in value:
            return YarnRotary
        return SlowRotary if "trained" in value else cls

    def turn(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """(total, 3, num_heads, head_dim) with queries and keys turned. positions: (total,).

        qkv: the same shape; on a CPU, unless gradients are recorded, it is turned in place and returned.
        """
        if torch.is_grad_enabled() or qkv.device.type != "cpu":
            return torch.cat([self.turn_heads(qkv[:, :2].flatten(1, 2), positions).view_as(qkv[:, :2]), qkv[:, 2:]], 1)
        cos, sin = self._turns(qkv.shape[-1], positions)
        for start in range(0, len(qkv), CPU_BLOCK_ROWS):
            block = slice(start, start + CPU_BLOCK_ROWS)
            heads = qkv[block, :2]
            heads.copy_(_turned(heads.flatten(1, 2), cos[block], sin[block]).view_as(heads))
        return qkv

    def turn_heads(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(total, n, head_dim) turned heads of queries or keys. heads: (total, n, head_dim)."""
        return _turned(heads, *self._turns(heads.shape[-1], positions))

    def _turns(self, size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(total, 1, size / 2) cosines and sines of the angles of a head of that size; on a CPU from a table."""
        if torch.is_grad_enabled() or positions.device.type != "cpu" or not len(positions):
            return self.turns(self.angles(size, positions)[:, None])
        cos, sin = self.tables(size, positions)
        return cos[positions, None], sin[positions, None]

    def tables(self, size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(m, size / 2) cosines and sines at all positions below some m, which is above those given; on a CPU."""
        return _table(self, size, 1 << int(positions.max()).bit_length())

    def angles(self, size: int, positions: Tensor) -> Tensor:
        """(total, size / 2) angles by which the pairs of a head of that size are turned."""
        return positions[:, None] * self.frequencies(torch.arange(0, size, 2, device=positions.device) / size)

    def turns(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of angles, in their shape."""
        return angles.cos(), angles.sin()

    def frequencies(self, exponents: Tensor) -> Tensor:
        """(n,) angles by which pairs turn from one position to the next. exponents: (n,) 2 i / head_dim."""
        # The order of operations is that of training: at position 8,000 another rounding turns visibly.
        return 1.0 / self.base**exponents / self.factor


@dataclass(frozen=True, kw_only=True)
class SlowRotary(Rotary):
    """Interpolates only the pairs that turn slowly, as Llama 3.1 and 3.2 do (the rule is that of their code).

    trained: the positions of texts in training, before interpolation.  slow, fast: a pair that turns less than `slow`
    times within them is interpolated, one that turns more than `fast` times is not, and one between them in part.
    Raises ValueError unless `fast` is above `slow`.
    """

    trained: int
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self) -> None:
        if not self.fast > self.slow:
            raise ValueError(f"fast pairs must turn more often than slow ones, got {self.fast} and {self.slow} times")

    def frequencies(self, exponents: Tensor) -> Tensor:
        plain = 1.0 / self.base**exponents
        turns = self.trained / (2 * math.pi / plain)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0.0, 1.0)
        return (1 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True, kw_only=True)
class YarnRotary(SlowRotary):
    """YaRN (Peng et al. 2023, arXiv 2309.00071), as transformers computes it: between pairs that turn `slow` and `fast`
    times the part that is interpolated grows evenly from pair to pair, and queries and keys are scaled.

    attention_factor: by which they are.
    """

    attention_factor: float
    fast: float = 32.0

    def turns(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor

    def frequencies(self, exponents: Tensor) -> Tensor:
        powers, size = self.base**exponents, 2 * len(exponents)
        first, last = (
            size * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))
            for turns in (self.fast, self.slow)
        )
        begin, end = max(math.floor(first), 0), min(math.ceil(last), size - 1)
        pairs = torch.arange(len(exponents), device=exponents.device)
        kept = 1 - ((pairs - begin) / (end - begin or 0.001)).clamp(0.0, 1.0)
        return 1.0 / (self.factor * powers) * (1 - kept) + 1.0 / powers * kept


@lru_cache(maxsize=MAX_TABLES)
def _table(rotary: Rotary, size: int, count: int) -> tuple[Tensor, Tensor]:
    """(count, size / 2) cosines and sines at the first positions, which layers and batches share on a CPU."""
    return rotary.turns(rotary.angles(size, torch.arange(count)))


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(total, n, head_dim) turned heads. cos, sin: (total, 1, head_dim / 2)."""
    left, right = heads.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(heads.dtype)
