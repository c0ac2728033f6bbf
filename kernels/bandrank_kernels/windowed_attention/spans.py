"""Sets of rows made of runs, before any tensor exists: the queries and keys of a sequence, and tasks of both."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bandrank_kernels.arrays import Bools, Ints, indices_within
from bandrank_kernels.windowed_attention.rows import PackedRows

# The most rows of a task: with a window, its keys and values stay in the first-level cache.
TASK_ROWS = 128
# The columns of a table of tasks, as `Task` in attention_task.h: query run, three runs of keys, band, window, causal.
QUERIES, KEYS, BAND, WINDOW, CAUSAL = 0, 2, 8, 10, 11
COLUMNS = 12
Tasks = npt.NDArray[np.int64]  # (n, COLUMNS)


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

    def join(self, other: "Spans", *, visible: bool = True) -> "Spans":
        """Each sequence followed by its counterpart in `other`, if that is visible."""
        if not visible:
            return self
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


def tasks_of(queries: Spans, keys: Spans | None, window: int | None = None, *, causal: bool = False) -> Tasks:
    """Cuts each span of query rows into tasks of at most `TASK_ROWS` rows. Their keys are the runs of its entry in
    `keys` and, with a window, the span's rows within it, if causal none after the query row. Without a window, a row is
    computed alike however few rows its task has, since `layer` cuts sequences elsewhere.
    """
    starts, lengths = queries.starts[:, 0], queries.lengths[:, 0]
    owner, begin, end = cut(lengths, TASK_ROWS)
    tasks = np.zeros((len(owner), COLUMNS), np.int64)
    tasks[:, QUERIES], tasks[:, QUERIES + 1], tasks[:, WINDOW] = starts[owner] + begin, end - begin, -1
    if keys is not None:
        last = KEYS + 2 * keys.starts.shape[1]
        tasks[:, KEYS:last:2], tasks[:, KEYS + 1 : last : 2] = keys.starts[owner], keys.lengths[owner]
    if window is not None:
        window = min(window, int(lengths.max(initial=0)))
        low, high = np.maximum(begin - window, 0), np.minimum(end + window, lengths[owner])
        tasks[:, BAND], tasks[:, BAND + 1], tasks[:, WINDOW] = starts[owner] + low, high - low, window
        tasks[:, CAUSAL] = causal
    return tasks


def cut(lengths: Ints, max_rows: int, *, min_runs: int = 0) -> tuple[Ints, Ints, Ints]:
    """Cuts sequences of these lengths into runs of at most `max_rows` rows, at least `min_runs` each. Returns the
    sequence of each run, and where in it the run begins and ends.
    """
    runs = np.maximum(-(-lengths // max_rows), min_runs)
    owner = np.repeat(np.arange(len(lengths)), runs)
    begin = indices_within(runs) * max_rows
    return owner, begin, np.minimum(begin + max_rows, lengths[owner])
