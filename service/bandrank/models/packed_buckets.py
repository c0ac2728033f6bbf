"""Buckets of packed batches, for cross-encoders.

Their inputs are ids, positions, types and tables of tiles, whose unused entries are marked. Unused rows hold token 0,
and no other row attends to them.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bandrank.models.buckets import Fitted
from bandrank.models.layers.packing import PackedInputs, PackedTokens
from bandrank.models.usual import usual_layouts, usual_texts
from bandrank_kernels.windowed_attention import AttentionPlan, Capacity, PackedRows, bucket_rows, row_bucket

# The bucket of the largest batch that an engine makes by default, 32,768 rows. Whatever the size, the host of an H200
# took 4 to 10 ms to launch a MiniLM-L6, and the card 1 ms to compute 16,600 rows (2026-11-27).
MAX_ROWS = 34_256

PlanRows = Callable[[PackedRows, Capacity], AttentionPlan]


def room_for(max_rows: int) -> int:
    """The most bytes of a batch's inputs: three numbers for each row, two tables of tiles of 32 bytes, with fewer than
    four tiles for each row, and counters of sixteen heads.
    """
    return max_rows * (3 * 8 + 4 * 32 + 16 * 4)


class PackedBuckets:
    """Implements `Buckets`: a bucket for each `Capacity`."""

    def __init__(
        self,
        compute: Callable[[PackedInputs], Tensor],
        plan: PlanRows,
        *,
        max_rows: int = MAX_ROWS,
        shares_queries: bool = True,
    ) -> None:
        """compute: computes a batch's (num_candidates,) scores on the device.  plan: plans its attention for a
        capacity.
        max_rows: the rows of the largest bucket.  shares_queries: whether candidates share the rows of their query.
        """
        self._compute, self._plan, self._max_rows, self._shares_queries = compute, plan, max_rows, shares_queries

    @property
    def num_bytes(self) -> int:
        return room_for(self._max_rows)

    def fit(self, batch: PackedTokens) -> Fitted | None:
        capacity = Capacity.of(batch.rows)
        if capacity.num_rows > self._max_rows:
            return None
        plan = self._plan(batch.rows, capacity)

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            # `bind` allocates scratch in each run, so that a graph's lies in the memory that all graphs share.
            bound = plan.bind(inputs[1:])  # @bind
            return self._compute(PackedInputs(inputs[0], bound, capacity.num_candidates))

        key = capacity.num_rows, capacity.num_candidates, plan.signature  # @bucket
        numbers = torch.from_numpy(batch.padded)  # @padding
        tables = [numbers, *plan.host_tables]
        return Fitted(key, tables, tables, compute, batch.rows.num_candidates)

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        layouts = usual_layouts if self._shares_queries else usual_texts
        for rows in layouts(min(self._max_rows, row_bucket(max_rows))):
            fitted = self.fit(PackedTokens(np.zeros((3, bucket_rows(rows)), np.int64), rows))
            assert fitted is not None, "a usual layout that has no bucket. This is a bug."
            yield fitted
