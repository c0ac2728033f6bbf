"""The terms of the sums in both operations: rows, or rows of a table by their numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Addend(NamedTuple):
    """Row i of a sum takes rows[numbers[i]], or rows[i] where there are no numbers.

    rows: (n, hidden_size).  numbers: (total,) int64.
    """

    rows: Tensor
    numbers: Tensor | None = None

    @property
    def total(self) -> int:
        """Number of rows of the sum."""
        return (self.rows if self.numbers is None else self.numbers).shape[0]


def check(addends: Sequence[Addend], weight: Tensor, bias: Tensor) -> None:
    """Raises ValueError if the addends, or the weight and bias of their norm, do not fit together."""
    first, total = addends[0].rows, addends[0].total
    if first.dim() != 2 or not first.is_floating_point():
        raise ValueError(f"rows must be (n, hidden_size) of a floating-point dtype, got {_words(first)}")
    hidden_size, dtype, device = first.shape[1], first.dtype, first.device
    for addend in addends:
        rows, numbers = addend
        if rows.dim() != 2 or rows.shape[1] != hidden_size:
            raise ValueError(f"rows must have one hidden_size, got {tuple(first.shape)} and {tuple(rows.shape)}")
        if addend.total != total:
            raise ValueError(f"addends must have one number of rows, got {total} and {addend.total}")
        if numbers is not None and (numbers.dim() != 1 or numbers.dtype != torch.int64 or numbers.device != device):
            raise ValueError(f"numbers of rows must be (total,) int64 on {device}, got {_words(numbers)}")
    for parameter in (weight, bias):
        if parameter.dim() != 1 or parameter.shape[0] != hidden_size:
            raise ValueError(f"weight and bias must be ({hidden_size},), got {tuple(parameter.shape)}")
    for tensor in (*(rows for rows, _ in addends), weight, bias):
        if tensor.dtype != dtype or tensor.device != device:
            raise ValueError(f"all must be {dtype} on {device}, got {_words(tensor)}")


def _words(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
