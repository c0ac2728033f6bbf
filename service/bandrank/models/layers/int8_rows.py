"""Matrices as rows of bytes: whole multiples, -127 to 127, of a scale for each row."""

import torch
from torch import Tensor

LARGEST = 127


def int8_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest rows to those of a matrix, (n, m) int8, and their (n,) float32 scales: the largest number of each row
    keeps its value, and what was such a row before comes out as it was.

    A scale is finite if all numbers of its row are; the row is of no use if it is not.
    """
    matrix = matrix.detach().float()
    scales = (matrix.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    return (matrix / scales[:, None]).round().to(torch.int8), scales
