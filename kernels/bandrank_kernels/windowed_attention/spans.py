"""Sets of rows made of runs: the queries and the keys of a sequence, before any tensor exists."""

from dataclasses import dataclass

import numpy as np

from bandrank_kernels.arrays import Bools, Ints
from bandrank_kernels.windowed_attention.rows import PackedRows


@dataclass(frozen=True)
class Spans:
    """n sequences, each the concatenation of k runs of packed rows.

    starts, lengths: (n, k): run j of sequence i is rows starts[i, j] .. starts[i, j] + lengths[i, j] - 1.
    """

    starts: Ints
    lengths: Ints

    @property
    def totals(self) -> Ints:
        """(n,) rows of each sequence."""
        return np.asarray(self.lengths.sum(1))

    def take(self, which: Ints) -> "Spans":
        """The chosen sequences, in the order of `which`."""
        return Spans(self.starts[which], self.lengths[which])

    def join(self, other: "Spans") -> "Spans":
        """Each sequence followed by its counterpart in `other`."""
        return Spans(np.concatenate([self.starts, other.starts], 1), np.concatenate([self.lengths, other.lengths], 1))

    def lay_out(self) -> tuple[Ints, Bools]:
        """Row numbers padded with 0 to the longest sequence, (n, width), and which of them are real."""
        width = int(self.totals.max(initial=0))
        position = np.arange(width)[None, :]
        ends = self.lengths.cumsum(1)
        index = np.zeros((len(self.starts), width), np.int64)
        for run in reversed(range(self.starts.shape[1])):
            begin = (ends[:, run] - self.lengths[:, run])[:, None]
            index = np.where(position < ends[:, run : run + 1], self.starts[:, run : run + 1] + position - begin, index)
        return index, position < ends[:, -1:]


def cls_spans(rows: PackedRows) -> Spans:
    """The one [CLS] row of each candidate."""
    return Spans(np.arange(rows.num_candidates)[:, None], np.ones((rows.num_candidates, 1), np.int64))


def candidate_spans(rows: PackedRows) -> Spans:
    """The rows of each candidate."""
    return Spans(rows.first_candidate_row + rows.cu_candidates[:-1, None], rows.candidate_lengths[:, None])


def query_spans(rows: PackedRows) -> Spans:
    """The rows of each query."""
    return Spans(rows.first_query_row + rows.cu_queries[:-1, None], rows.query_lengths[:, None])
