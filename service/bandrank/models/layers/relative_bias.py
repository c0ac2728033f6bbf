"""Learnt biases for the distance of two rows, by buckets of distances (Raffel et al. 2020, "T5", arXiv 1910.10683,
section 2.1), as MPNet and T5 have them: one table for all layers.
"""

import math

import torch
from torch import Tensor, nn

from bandrank.models.layers.distance_bias import DistanceBias
from bandrank_kernels.transfer import to_device

BUCKETS, FARTHEST = 32, 128  # rows of the table, half of them for either sign; farther distances share the last row


def buckets(farthest: int) -> Tensor:
    """(2 * farthest + 1,) int64 row of the table for each distance, of a query row from a key row, from -farthest on.

    Near distances have a row each; farther ones share rows, whose ranges grow exponentially.
    """
    distance = torch.arange(-farthest, farthest + 1)
    half, near = BUCKETS // 2, BUCKETS // 4
    away = distance.abs()
    # float32 in this order of operations, as in the models' training
    grown = torch.log(away.clamp(min=1).float() / near) / math.log(FARTHEST / near) * (half - near)
    far = (near + grown.long()).clamp(max=half - 1)
    return torch.where(away < near, away, far) + half * (distance < 0)


class RelativeBias(DistanceBias):
    """The table of biases that all blocks of an encoder share."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, num_heads)

    def biases(self, farthest: int, device: torch.device) -> Tensor:
        (of_distance,) = to_device([buckets(farthest)], device)
        return self.table(of_distance).float()  # type: ignore[no-any-return]
