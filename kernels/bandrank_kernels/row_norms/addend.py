"""The terms of the sums in both operations: rows, or rows of a table chosen by number."""

from typing import NamedTuple

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
