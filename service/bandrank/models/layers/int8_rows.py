"""Matrices as rows of bytes: integer multiples, -127 to 127, of a scale for each row."""

import torch
from torch import Tensor

LARGEST = 127


def int8_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds a matrix to (n, m) int8 rows with (n,) float32 scales. The largest number of each row keeps its value, and
    rows that were int8 before come out as they were.

    A scale is finite if all numbers of its row are; otherwise the row is of no use.
    """
    matrix = matrix.detach().float()
    scales = (matrix.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return (matrix / scales[:, None]).round().to(torch.int8), scales
