"""What both operations sum: rows as they are, or rows of a table by their numbers."""

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
        """Rows of the sum."""
        return (self.rows if self.numbers is None else self.numbers).shape[0]


def check(addends: Sequence[Addend], weight: Tensor, bias: Tensor) -> None:
    """Raises ValueError if the addends, or the weight and bias of their norm, do not fit together."""
    total, first = addends[0].total, addends[0].rows
    if first.dim() != 2 or not first.is_floating_point():
        raise ValueError(f"rows must be (n, hidden_size) of a floating-point dtype, got {_words(first)}")
    for rows, numbers in addends:
        if rows.dim() != 2 or rows.shape[1] != first.shape[1]:
            raise ValueError(f"rows must have one hidden_size, got {tuple(first.shape)} and {tuple(rows.shape)}")
        if numbers is not None and (numbers.dim() != 1 or numbers.dtype != torch.int64):
            raise ValueError(f"numbers of rows must be (total,) int64, got {_words(numbers)}")
    if any(addend.total != total for addend in addends):
        raise ValueError(f"addends must have one number of rows, got {[addend.total for addend in addends]}")
    for parameter in (weight, bias):
        if parameter.shape != first.shape[1:]:
            raise ValueError(f"weight and bias must be {tuple(first.shape[1:])}, got {tuple(parameter.shape)}")
    floats = [*(rows for rows, _ in addends), weight, bias]
    if any(tensor.dtype != first.dtype for tensor in floats):
        raise ValueError(f"rows, weight and bias must be of one dtype, got {[tensor.dtype for tensor in floats]}")
    tensors = [*floats, *(numbers for _, numbers in addends if numbers is not None)]
    if any(tensor.device != first.device for tensor in tensors):
        raise ValueError(f"all tensors must be on one device, got {[str(tensor.device) for tensor in tensors]}")


def _words(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
