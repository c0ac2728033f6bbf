"""Learnt position tables interpolated to longer texts (Schlatt et al. 2024, arXiv 2312.17649, section 3.5)."""

import torch
from torch import Tensor

MOST_POSITIONS = 2**16  # more than models have; what a config.json says may not fit in memory


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

    Raises ValueError if the table has more rows than `num_positions`, or fewer than 20, or for over `MOST_POSITIONS`.
    """
    if not 20 <= len(table) <= num_positions <= MOST_POSITIONS:
        raise ValueError(f"cannot interpolate a table of {len(table)} positions to {num_positions}")
    kept = trained_rows(table)
    source = torch.arange(num_positions, dtype=torch.float64) * ((kept - 1) / (num_positions - 1))
    low = source.floor().long()
    high = source.ceil().long()
    return torch.lerp(table[low], table[high], (source - low)[:, None].to(table.dtype))
