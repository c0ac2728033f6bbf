"""Which inputs of an int8 layer are kept in several bytes (outlier channel splitting, Zhao et al. 2019)."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bandrank_kernels.native.weights import MULTIPLE, Split

# Bytes that are added to a row for its largest inputs: one register, the fewest possible. They pay if the steps of rows
# become FINER times as fine, plus the share by which rows become longer.
COPIES, FINER = MULTIPLE, 1.2


def split_for(inputs: Tensor) -> Split | None:
    """How the inputs of a layer are best split, given some rows of them; None if that would gain little.

    Each added byte goes to the input that is most often the largest or the least of its row.
    inputs: (n, in_features).
    """
    rows = inputs.numpy()  # numpy finds a row's largest number several times faster than torch
    num_bytes, shares = np.ones(rows.shape[1], np.int64), rows.copy()
    for _ in range(COPIES):
        worst = np.bincount(np.concatenate([shares.argmax(1), shares.argmin(1)])).argmax()
        num_bytes[worst] += 1
        shares[:, worst] = rows[:, worst] / num_bytes[worst]
    enough = FINER + COPIES / len(num_bytes)
    return Split.of(torch.from_numpy(num_bytes)) if _mean_span(rows) > enough * _mean_span(shares) else None


def _mean_span(rows: npt.NDArray[np.float32]) -> float:
    """The mean distance from the least number of a row, or zero, to its largest, or zero."""
    return float((rows.max(1).clip(min=0) - rows.min(1).clip(max=0)).mean())
