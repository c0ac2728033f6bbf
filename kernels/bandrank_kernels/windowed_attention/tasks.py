"""Tables of tasks for the CPU kernels: runs of query rows, each with the runs of its keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bandrank_kernels.arrays import Ints, indices_within
from bandrank_kernels.native.checks import check, why_odd
from bandrank_kernels.native.library import BiasesStruct, native
from bandrank_kernels.native.threads import in_parts
from bandrank_kernels.windowed_attention.spans import Spans

# Rows that are one task: with a window its keys and values stay in the first-level cache.
TASK_ROWS = 128
MIN_TASKS = 4  # that are worth a thread
# The columns of a table of tasks, as `Task` in attention_task.h: query run, three runs of keys, band, window, causal.
QUERIES, KEYS, BAND, WINDOW, CAUSAL = 0, 2, 8, 10, 11
COLUMNS = 12
Tasks = npt.NDArray[np.int64]  # (n, COLUMNS)


@dataclass(frozen=True, eq=False)
class DistanceBiases:
    """What each head adds to the logit of two rows for the position of the query row less that of the key row.

    table: (num_heads, 2 * reach + 1 and some room) float32, for distances from -reach on.  positions: (rows,) int64;
    those of consecutive rows of a query, or of a candidate, are consecutive.
    """

    table: Tensor
    reach: int
    positions: Tensor

    @classmethod
    def of(cls, biases: Tensor, positions: Tensor) -> "DistanceBiases":
        """biases: (2 * reach + 1, num_heads), where no two rows of a sequence are farther than `reach` apart."""
        distances, heads = biases.shape
        table = torch.zeros(heads, distances + native().bias_room)
        table[:, :distances] = biases.T
        return cls(table, distances // 2, positions.contiguous())

    @cached_property
    def struct(self) -> BiasesStruct:
        """What the kernels are given; valid as long as this object."""
        return BiasesStruct(self.table.data_ptr(), self.table.shape[1], self.reach, self.positions.data_ptr())


def tasks_of(queries: Spans, keys: Spans | None, window: int | None = None, *, causal: bool = False) -> Tasks:
    """Tasks of at most `TASK_ROWS` rows of each span of query rows; their keys are the runs of its entry in `keys`, and
    with a window the rows of the span within it, where it is causal none behind the query row. Without one, rows are
    computed alike however few of them are in the task, since `layer` cuts sequences elsewhere.
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
    """Runs of at most `max_rows` rows that cover sequences of these lengths, at least `min_runs` of each: the index of
    the sequence of each run, and where in it the run begins and ends.
    """
    runs = np.maximum(-(-lengths // max_rows), min_runs)
    owner = np.repeat(np.arange(len(lengths)), runs)
    begin = indices_within(runs) * max_rows
    return owner, begin, np.minimum(begin + max_rows, lengths[owner])


def attend_whole(tasks: Tasks, num_rows: int, qkv: Sequence[Tensor]) -> Tensor:
    """(num_rows, num_heads, head_dim) what `attend_tasks` gives for tasks that have all rows."""
    query, key, _ = qkv
    check("query", query, num_rows, None, None)
    check("key", key, num_rows, None, None)
    return attend_tasks(tasks, qkv, query.new_empty(query.shape))


def attend_tasks(tasks: Tasks, qkv: Sequence[Tensor], out: Tensor, biases: DistanceBiases | None = None) -> Tensor:
    """`out`, with the attention of all tasks. Rows of no task are not written.

    qkv: queries, (n, num_heads, head_dim), and keys and values, (rows, num_kv_heads, head_dim) each, any stride between
    rows; as many heads of queries share each of the others.  out: as many rows as have tasks, from the first one on, of
    num_heads * head_dim numbers.  biases: of num_kv_heads.  Raises ValueError for other tensors.
    """
    query, key, value = qkv
    check("query", query, None, None, None)
    heads, head_dim = query.shape[1:]
    check("key", key, None, None, head_dim)
    check("value", value, *key.shape)
    kv_heads = key.shape[1]
    if reason := why_odd(head_dim):
        raise ValueError(reason)
    if heads % kv_heads:
        raise ValueError(f"{kv_heads} heads of keys must be shared by as many of queries each, got {heads}")
    query, key, value = map(_without_gaps, qkv)
    if key.stride(0) != value.stride(0):
        key, value = key.contiguous(), value.contiguous()
    added = None
    if biases is not None:
        check("positions", biases.positions, len(key), dtype=torch.int64)
        check("biases", biases.table, kv_heads, None)
        added = biases.struct
    queries = query.data_ptr(), query.stride(0), heads
    keys = key.data_ptr(), value.data_ptr(), key.stride(0), kv_heads, head_dim

    def run(begin: int, end: int) -> None:
        first = tasks.ctypes.data + begin * tasks.strides[0]
        native().attend(*queries, *keys, first, end - begin, added, out.data_ptr())

    in_parts(len(tasks), MIN_TASKS, run)
    return out


def _without_gaps(rows: Tensor) -> Tensor:
    """(n, heads, head_dim) rows whose numbers follow each other; a copy if they did not."""
    return rows if rows.stride()[1:] == (rows.shape[2], 1) else rows.contiguous()
