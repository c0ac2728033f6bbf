"""The backend in C++ for a CPU: a few rows at a time, one in each lane of a register, without padding."""

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bandrank_kernels.arrays import Ints, indices_within
from bandrank_kernels.native.library import native, why_no_native
from bandrank_kernels.windowed_attention.gathered import SequenceGroup
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import Spans, candidate_spans, cls_spans, query_spans
from bandrank_kernels.windowed_attention.vectorized import attend_cls_groups, plan_cls_groups

# Rows of a windowed candidate that are one task: its keys and values stay in the first-level cache.
TASK_ROWS = 128
# The columns of a table of tasks, as `Task` in attention.h: query run, three runs of keys, band, window.
QUERIES, KEYS, BAND, WINDOW = 0, 2, 8, 10
COLUMNS = 11
Tasks = npt.NDArray[np.int64]  # (n, COLUMNS)
MOST_HEAD_DIM, HEAD_DIM_MULTIPLE = 256, 16


def why_not_native(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the CPU kernels compute no attention of this kind, as a clause; None if they do."""
    if device.type != "cpu":
        return f"the tensors are on {device}"
    if dtype != torch.float32:
        return f"they compute attention in float32, not {dtype}"
    if head_dim % HEAD_DIM_MULTIPLE or head_dim > MOST_HEAD_DIM:
        return f"heads of {head_dim} numbers are no multiple of {HEAD_DIM_MULTIPLE} up to {MOST_HEAD_DIM}"
    return why_no_native()


class NativePlan(AttentionPlan):
    """A table of tasks, each a run of query rows with the runs of its keys; every row is of one task."""

    def __init__(self, rows: PackedRows, pattern: AttentionPattern) -> None:
        self._rows, self._pattern = rows, pattern
        cls, candidate = cls_spans(rows), candidate_spans(rows)
        query = query_spans(rows).take(rows.candidate_query)  # one entry per candidate
        self._cls_tasks = _tasks(cls, _keys(cls, (query, pattern.cls_to_query), (candidate, pattern.cls_to_candidate)))
        if pattern.shares_queries:
            query_tasks = _tasks(query_spans(rows), query_spans(rows))
        else:
            seen = _keys(query, (cls, pattern.query_to_cls), (candidate, pattern.query_to_candidate))
            query_tasks = _tasks(query, seen)
        others = [(cls, pattern.candidate_to_cls), (query, pattern.candidate_to_query)]
        if pattern.window is None:
            candidate_tasks = _tasks(candidate, _keys(candidate, *others))
        else:
            candidate_tasks = _banded_tasks(candidate, pattern.window, _keys(None, *others))
        self._tasks = np.concatenate([self._cls_tasks, query_tasks, candidate_tasks])

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_tasks(self._tasks, qkv, len(qkv))

    def attend_first(self, qkv: Tensor, num_candidates: int) -> Tensor:
        return attend_tasks(self._cls_tasks, qkv, num_candidates)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        return attend_cls_groups(self._cls_groups, query, rows, scale)

    @cached_property
    def _cls_groups(self) -> list[SequenceGroup]:
        return plan_cls_groups(self._rows, self._pattern, device=torch.device("cpu"), dtype=torch.float32)


class NativeLocalPlan(AttentionPlan):
    """Each row of a text attends to the rows at most `window` away; texts lie end to end."""

    def __init__(self, cu_seqlens: Ints, window: int) -> None:
        texts = Spans(cu_seqlens[:-1, None], np.diff(cu_seqlens)[:, None])
        self._tasks = _banded_tasks(texts, window, None)

    def attend(self, qkv: Tensor) -> Tensor:
        return attend_tasks(self._tasks, qkv, len(qkv))

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        raise NotImplementedError("texts by themselves have no [CLS] rows in front")


def attend_tasks(tasks: Tasks, qkv: Tensor, num_rows: int) -> Tensor:
    """(num_rows, num_heads, head_dim) the attention of all tasks, which have the first `num_rows` rows for queries.

    qkv: (rows, 3, num_heads, head_dim) float32, any stride between rows. Rows of no task are undefined.
    """
    heads, head_dim = qkv.shape[2:]
    if qkv.stride()[2:] != (head_dim, 1):
        qkv = qkv.contiguous()
    out = qkv.new_empty(num_rows, heads, head_dim)
    query, key, value = (each.data_ptr() for each in qkv.unbind(1))
    native().attend(query, key, value, qkv.stride(0), heads, head_dim, tasks.ctypes.data, len(tasks), out.data_ptr())
    return out


def _keys(first: Spans | None, *others: tuple[Spans, bool]) -> Spans | None:
    for spans, visible in others:
        if visible:
            first = spans if first is None else first.join(spans)
    return first


def _tasks(queries: Spans, keys: Spans | None) -> Tasks:
    """A task for each span of query rows that is not empty; its keys are the runs of the same entry of `keys`."""
    tasks = np.zeros((len(queries.starts), COLUMNS), np.int64)
    tasks[:, QUERIES : QUERIES + 1], tasks[:, QUERIES + 1 : QUERIES + 2] = queries.starts, queries.lengths
    if keys is not None:
        end = KEYS + 2 * keys.starts.shape[1]
        tasks[:, KEYS:end:2], tasks[:, KEYS + 1 : end : 2] = keys.starts, keys.lengths
    return tasks[tasks[:, QUERIES + 1] > 0]


def _banded_tasks(spans: Spans, window: int, keys: Spans | None) -> Tasks:
    """Tasks of at most `TASK_ROWS` rows that see the rows of their span at most `window` away, and all of `keys`."""
    starts, lengths = spans.starts[:, 0], spans.lengths[:, 0]
    pieces = -(-lengths // TASK_ROWS)
    owner = np.repeat(np.arange(len(starts)), pieces)
    begin = indices_within(pieces) * TASK_ROWS
    end = np.minimum(begin + TASK_ROWS, lengths[owner])
    tasks = _tasks(
        Spans((starts[owner] + begin)[:, None], (end - begin)[:, None]), None if keys is None else keys.take(owner)
    )
    window = min(window, int(lengths.max(initial=0)))
    low, high = np.maximum(begin - window, 0), np.minimum(end + window, lengths[owner])
    tasks[:, BAND], tasks[:, BAND + 1], tasks[:, WINDOW] = starts[owner] + low, high - low, window
    return tasks
