"""Buckets of texts that are encoded by themselves, as candidates are whose representations are stored.

Their inputs are ids, positions, the text of each row, and the tables of a plan. Unused rows hold token 0 and belong to
one text more than the bucket has; what becomes of them is undefined, and reaches no other text.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bandrank.models.buckets import Fitted
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.packed_buckets import MAX_ROWS, room_for
from bandrank.models.ragged import Ragged
from bandrank.models.usual import even_lengths, usual_sizes
from bandrank_kernels.arrays import indices_within, offsets
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    PackedRows,
    power_of_two,
    row_bucket,
)

LONGEST = 256  # tokens: shorter texts share buckets with such as these, and launches for them cost next to nothing
# Multiplications of a layer for the largest bucket, by the model of time 0.3 ms of an H200, whose host takes longer to
# launch a layer. For more rows, a graph would save nothing, and captures at start would take long.
MOST_PRODUCTS = 2**36


@dataclass(frozen=True)
class TextInputs:
    """The inputs of a bucket on the device.

    numbers: (3, num_rows) int64, the ids, positions and texts of rows; the text of unused rows is `num_texts`.
    num_texts: the most texts of the bucket.  plan: the plan of their attention.
    """

    numbers: Tensor
    num_texts: int
    plan: AttentionPlan


class TextBuckets:
    """Implements `Buckets`: a bucket for each number of rows and power of two of texts."""

    def __init__(self, compute: Callable[[TextInputs], Tensor], encoder: Encoder) -> None:
        """compute: computes, on the device, results of which the first dimension is that of the texts.  encoder: plans
        their attention.
        """
        self._compute, self._encoder = compute, encoder
        self._max_rows = min(MAX_ROWS, MOST_PRODUCTS // encoder.config.products_per_layer)

    @property
    def num_bytes(self) -> int:
        return room_for(self._max_rows)

    def fit(self, batch: Ragged) -> Fitted | None:
        """Lays token ids in host memory out for their bucket."""
        rows = PackedRows.of_texts(batch.cu_seqlens)
        capacity = replace(Capacity.of(rows), query_rows=power_of_two(batch.max_seqlen, LONGEST))
        if rows.num_rows == 0 or capacity.num_rows > self._max_rows:
            return None
        num_texts = capacity.num_candidates
        plan = self._encoder.plan(rows, AttentionPattern.apart(), capacity)
        numbers = np.zeros((3, capacity.num_rows), np.int64)
        numbers[2] = num_texts  # @unused-text
        numbers[0, : rows.num_rows] = batch.values.numpy()
        numbers[1, : rows.num_rows] = indices_within(batch.lengths)
        numbers[2, : rows.num_rows] = np.repeat(np.arange(len(batch)), batch.lengths)

        def compute(inputs: Sequence[Tensor]) -> Tensor:
            return self._compute(TextInputs(inputs[0], num_texts, plan.bind(inputs[1:])))

        tables = [torch.from_numpy(numbers), *plan.host_tables]
        key = capacity.num_rows, num_texts, plan.signature  # @text-bucket
        return Fitted(key, tables, tables, compute, len(batch))

    def usual(self, max_rows: int) -> Iterator[Fitted]:
        for num_rows, count in usual_sizes(min(self._max_rows, row_bucket(max_rows))):
            texts = Ragged(torch.zeros(num_rows, dtype=torch.int64), offsets(even_lengths(num_rows, count)))
            fitted = self.fit(texts)
            assert fitted is not None, "a usual batch that has no bucket. This is a bug."
            yield fitted
