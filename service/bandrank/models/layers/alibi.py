"""Biases that fall with the distance of two rows, by a slope for each head, on both sides alike (ALiBi: Press et al.
2022, arXiv 2108.12409, section 3; for encoders as in Günther et al. 2023, arXiv 2310.19923, section 4.1).
"""

import torch
from torch import Tensor

from bandrank.models.layers.distance_bias import DistanceBias
from bandrank_kernels.transfer import to_device


def slopes(num_heads: int) -> list[float]:
    """The slopes of n heads: 2 ** (-8 i / n) for i from 1 to n if n is a power of two; otherwise, as in the authors'
    code, those of the next lower power, and then every other one of the next higher.
    """
    lower: int = 1 << (num_heads.bit_length() - 1)
    of_lower = [2.0 ** (-8 * head / lower) for head in range(1, lower + 1)]
    between = [2.0 ** (-4 * head / lower) for head in range(1, 2 * lower, 2)]
    return of_lower + between[: num_heads - lower]


class Alibi(DistanceBias):
    """The biases of all heads; nothing is learnt."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = slopes(num_heads)  # not a tensor, which would be rounded with the weights

    def biases(self, farthest: int, device: torch.device) -> Tensor:
        away = torch.arange(-farthest, farthest + 1).abs()
        (biases,) = to_device([-torch.tensor(self.slopes) * away[:, None]], device)
        return biases
