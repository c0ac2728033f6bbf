"""Which inputs of an int8 layer are kept in several bytes (outlier channel splitting, Zhao et al. 2019)."""

import torch
from torch import Tensor

from bandrank_kernels.native.tensors import MULTIPLE, Split

# Bytes that are added to a row for its largest inputs: one register, the fewest possible. They pay if the steps of rows
# become FINER times as fine, plus the share by which rows become longer.
COPIES, FINER = MULTIPLE, 1.2


def split_for(inputs: Tensor) -> Split | None:
    """How the inputs of a layer are best split, given some rows of them; None if that would gain little.

    Each added byte goes to the input that is most often the largest or the least of its row.
    inputs: (n, in_features).
    """
    num_bytes = torch.ones(inputs.shape[1], dtype=torch.int64)
    shares = inputs.clone()
    for _ in range(COPIES):
        outliers = torch.cat([shares.argmax(1), shares.argmin(1)])
        worst = outliers.bincount(minlength=len(num_bytes)).argmax()
        num_bytes[worst] += 1
        shares[:, worst] = inputs[:, worst] / num_bytes[worst]
    enough = FINER + COPIES / len(num_bytes)
    return Split.of(num_bytes) if _mean_span(inputs) > enough * _mean_span(shares) else None


def _mean_span(rows: Tensor) -> Tensor:
    """The mean distance from the least number of a row, or zero, to its largest, or zero."""
    return (rows.amax(1).clamp(min=0) - rows.amin(1).clamp(max=0)).mean()
