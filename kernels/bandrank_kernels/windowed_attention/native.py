"""The backend in C++ for a CPU: a few rows at a time, one in each lane of a register, without padding."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bandrank_kernels.native.checks import check, why_odd
from bandrank_kernels.native.library import (
    BiasesStruct,
    LayerStruct,
    PatternStruct,
    SequencesStruct,
    native,
    why_no_native,
)
from bandrank_kernels.native.tensors import PackedLayer, linear
from bandrank_kernels.native.threads import in_parts
from bandrank_kernels.windowed_attention.gathered import SequenceGroup
from bandrank_kernels.windowed_attention.pattern import AttentionPattern
from bandrank_kernels.windowed_attention.plan import AttentionPlan
from bandrank_kernels.windowed_attention.rows import PackedRows
from bandrank_kernels.windowed_attention.spans import (
    KEYS,
    TASK_ROWS,
    WINDOW,
    Spans,
    Tasks,
    candidate_spans,
    cls_spans,
    cut,
    query_spans,
    tasks_of,
)
from bandrank_kernels.windowed_attention.vectorized import attend_cls_groups, plan_cls_groups

MIN_TASKS = 4  # that are worth a thread
# Threads share a long sequence in pieces of this many rows. It is cut alike in any batch, since the attention of its
# [CLS] is summed piece by piece.
PIECE_ROWS = 4 * TASK_ROWS
# For windows up to this, projecting a row again for each chunk that sees it is cheaper than keeping it in memory.
NEAR_ROWS = 16


def why_not_native(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the CPU kernels cannot compute this attention, as a clause; None if they can."""
    if device.type != "cpu":
        return f"the tensors are on {device}"
    if dtype != torch.float32:
        return f"the CPU kernels compute attention in float32, not {dtype}"
    return why_odd(head_dim) or why_no_native()


@dataclass(frozen=True, eq=False)
class DistanceBiases:
    """What each head adds to a logit for the distance of its rows: the query row's position less the key row's.

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
        """The kernels' argument; valid as long as this object."""
        return BiasesStruct(self.table.data_ptr(), self.table.shape[1], self.reach, self.positions.data_ptr())


class NativePlan(AttentionPlan):
    """A table of tasks, each a run of query rows with the runs of its keys; every row is in one task."""

    def __init__(self, rows: PackedRows, pattern: AttentionPattern) -> None:
        self._rows, self._pattern = rows, pattern

    def layer(self, hidden: Tensor, layer: PackedLayer) -> Tensor | None:
        hidden = self._whole(hidden, layer)
        if not self._pattern.shares_queries:
            return self._joint_layer(hidden, layer) if self._joint is not None else None
        out = torch.empty_like(hidden)
        attended = self._attend_before(hidden, layer, out)
        out[: len(attended)] = layer.rest(attended, hidden[: len(attended)])
        return out

    def layer_first(self, hidden: Tensor, layer: PackedLayer, num_candidates: int) -> Tensor | None:
        if not self._pattern.shares_queries:
            return None
        hidden = self._whole(hidden, layer)
        attended = self._attend_before(hidden, layer, None)
        return layer.rest(attended[:num_candidates], hidden[:num_candidates])

    def layers(self, hidden: Tensor, layers: Sequence[PackedLayer], num_candidates: int | None = None) -> Tensor | None:
        if torch.get_num_threads() > 1:  # they share each layer
            return None
        hidden, size = self._whole(hidden, layers[0]), hidden.shape[1]
        sequences = self._sequences(layers[0].heads, size // layers[0].heads)
        if sequences is None:
            return None
        states = hidden.new_empty(2, *hidden.shape)
        first = None if num_candidates is None else hidden.new_empty(num_candidates, size)
        native().stack(
            sequences,
            (LayerStruct * len(layers))(*(layer.struct for layer in layers)),
            len(layers),
            hidden.data_ptr(),
            *(each.data_ptr() for each in states),
            *((-1, None) if first is None else (len(first), first.data_ptr())),
        )
        return states[(len(layers) - 1) % 2] if first is None else first

    def _whole(self, hidden: Tensor, layer: PackedLayer) -> Tensor:
        """A layer's input, contiguous. Raises ValueError unless it has the rows of this batch."""
        check("hidden", hidden, self._rows.num_rows, layer.qkv.inputs)
        return hidden.contiguous()

    def _attend_before(self, hidden: Tensor, layer: PackedLayer, out: Tensor | None) -> Tensor:
        """(rows before the first sequence, hidden_size) the heads' output for these rows.

        out: (rows, hidden_size), takes the layer's output for the rows of sequences; None to leave it out, and the
        heads' output for queries.
        """
        size, heads = hidden.shape[1], layer.heads
        head_dim = size // heads
        before = self._before
        table, pattern = self._pieces
        given = linear(hidden if self._sees_far else hidden[:before], layer.qkv)
        attended, met = hidden.new_empty(before, size), hidden.new_empty(len(table), size + 2 * heads)
        if out is not None and before:
            attend_tasks(self._query_tasks, given.view(len(given), 3, heads, head_dim).unbind(1), attended)
        qkv = None if self._sees_far else layer.qkv.struct
        rest, to = (None, None) if out is None else (layer.rest.struct, out.data_ptr())
        inputs, sizes = (hidden.data_ptr(), given.data_ptr(), qkv, rest), (heads, head_dim)

        def run(begin: int, end: int) -> None:
            part = table[begin:end]
            pieces = part.ctypes.data, len(part)
            native().sequences(*inputs, *sizes, pattern, *pieces, met[begin:].data_ptr(), to)

        in_parts(len(table), 1, run)
        if before:
            native().finish_cls(table.ctypes.data, len(table), met.data_ptr(), *sizes, attended.data_ptr())
        return attended

    def _joint_layer(self, hidden: Tensor, layer: PackedLayer) -> Tensor:
        """The layer's output where all rows of a candidate, its query and its [CLS] see each other."""
        table, heads = self._joint, layer.heads
        assert table is not None
        out = torch.empty_like(hidden)
        sizes, layers = (heads, hidden.shape[1] // heads), (layer.qkv.struct, layer.rest.struct)

        def run(begin: int, end: int) -> None:
            part = table[begin:end]
            native().joint_sequences(hidden.data_ptr(), *layers, *sizes, part.ctypes.data, len(part), out.data_ptr())

        in_parts(len(table), 1, run)
        return out

    @cached_property
    def _joint(self) -> Tasks | None:
        """A row for each candidate, as `Joint` in joint.h; None if some rows do not see all, or if one candidate is so
        long that threads should share it.
        """
        if not self._pattern.is_full:
            return None
        cls, query, candidate = self._spans
        spans = cls.join(query).join(candidate)
        if (spans.totals > PIECE_ROWS).any():
            return None
        return np.ascontiguousarray(np.stack([spans.starts, spans.lengths], 2).reshape(-1, 6), np.int64)

    @cached_property
    def _pieces(self) -> tuple[Tasks, PatternStruct]:
        """A row for each piece of a candidate, as `Piece` in layers.h: its rows, those of its query, its [CLS] row, and
        all rows of the candidate; and who sees whom. In a batch of queries alone, these are cut instead.
        """
        rows, pattern = self._rows, self._pattern
        cls, query, own = self._spans
        # The kernels take distances in 32 bits.
        window = -1 if pattern.window is None else min(pattern.window, int(own.lengths.max(initial=0)))
        if rows.num_candidates == 0:
            own, none = query_spans(rows), np.zeros((rows.num_queries, 1), np.int64)
            query, cls, window = Spans(none, none), Spans(none - 1, none), -1
        owner, begin, end = cut(own.lengths[:, 0], PIECE_ROWS, min_runs=1)
        of_sequence = np.concatenate([query.starts, query.lengths, cls.starts, own.starts, own.lengths], 1)[owner]
        table = np.column_stack([own.starts[owner, 0] + begin, end - begin, of_sequence])
        seen = pattern.cls_to_query, pattern.cls_to_candidate, pattern.candidate_to_cls, pattern.candidate_to_query
        return np.ascontiguousarray(table, np.int64), PatternStruct(window, *seen)

    def _sequences(self, heads: int, head_dim: int) -> SequencesStruct | None:
        """The batch as `Sequences` in stack.h, valid as long as this plan; None if layers are not computed whole."""
        sizes = heads, head_dim, self._rows.num_rows, self._before
        if self._pattern.shares_queries:
            tasks, (pieces, pattern) = self._query_tasks, self._pieces
            num_tasks = len(tasks) if self._before else 0  # queries alone are sequences themselves
            tables = tasks.ctypes.data, num_tasks, pieces.ctypes.data, len(pieces)
            return SequencesStruct(*sizes, self._sees_far, pattern, *tables, None, 0)
        if self._joint is None:
            return None
        return SequencesStruct(*sizes, 0, PatternStruct(), None, 0, None, 0, self._joint.ctypes.data, len(self._joint))

    @property
    def _before(self) -> int:
        """The number of rows before the first sequence."""
        return self._rows.first_candidate_row if self._rows.num_candidates else 0

    @cached_property
    def _sees_far(self) -> bool:
        """Whether all rows are projected before any attends, because many are seen from more than one chunk."""
        table, pattern = self._pieces
        near = 0 <= pattern.window <= NEAR_ROWS
        return not near and bool((table[:, -1] > PIECE_ROWS).any())

    @cached_property
    def _spans(self) -> tuple[Spans, Spans, Spans]:
        """The rows of [CLS], the query and the candidate, one entry for each candidate."""
        rows = self._rows
        return cls_spans(rows), query_spans(rows).take(rows.candidate_query), candidate_spans(rows)

    # All list keys in one order, so that tasks of a candidate with the same keys have equal columns.

    @cached_property
    def _cls_tasks(self) -> Tasks:
        (cls, query, candidate), pattern = self._spans, self._pattern
        keys = _keys((cls, True), (query, pattern.cls_to_query), (candidate, pattern.cls_to_candidate))
        tasks = tasks_of(cls, keys)
        if not pattern.is_full:
            tasks[:, WINDOW] = 0  # for a single row, there is a faster way
        return tasks

    @cached_property
    def _query_tasks(self) -> Tasks:
        if self._pattern.shares_queries:
            alone = query_spans(self._rows)
            return tasks_of(alone, alone)
        (cls, query, candidate), pattern = self._spans, self._pattern
        keys = _keys((cls, pattern.query_to_cls), (query, True), (candidate, pattern.query_to_candidate))
        return tasks_of(query, keys)

    @cached_property
    def _candidate_tasks(self) -> Tasks:
        (cls, query, candidate), pattern = self._spans, self._pattern
        others = (cls, pattern.candidate_to_cls), (query, pattern.candidate_to_query)
        return tasks_of(candidate, _keys(*others, (candidate, pattern.window is None)), pattern.window)

    @cached_property
    def _tasks(self) -> Tasks:
        """The tasks of all rows. Those with the same keys are adjacent, so that keys are fetched once."""
        tasks = np.concatenate([self._cls_tasks, self._query_tasks, self._candidate_tasks])
        return np.ascontiguousarray(tasks[np.lexsort(tasks[:, KEYS:WINDOW].T[::-1])])

    def attend(self, qkv: Tensor, biases: DistanceBiases | None = None) -> Tensor:
        check("qkv", qkv, self._rows.num_rows, 3, None, None)
        return attend_tasks(self._tasks, qkv.unbind(1), qkv.new_empty(len(qkv), *qkv.shape[2:]), biases)

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_whole(self._tasks, (self._rows.num_rows,) * 2, query, key, value)

    def attend_first(self, qkv: Tensor, num_candidates: int, biases: DistanceBiases | None = None) -> Tensor:
        check("qkv", qkv, self._rows.num_rows, 3, None, None)
        return attend_tasks(self._cls_tasks, qkv.unbind(1), qkv.new_empty(num_candidates, *qkv.shape[2:]), biases)

    def attend_cls(self, query: Tensor, rows: Tensor, scale: float) -> Tensor:
        return attend_cls_groups(self._cls_groups, query, rows, scale)

    @cached_property
    def _cls_groups(self) -> list[SequenceGroup]:
        return plan_cls_groups(self._rows, self._pattern, device=torch.device("cpu"), dtype=torch.float32)


def attend_whole(tasks: Tasks, counts: tuple[int, int], *qkv: Tensor) -> Tensor:
    """(n, num_heads, head_dim) `attend_tasks` where all queries have tasks. counts: of queries and of keys."""
    for name, count, each in zip(("query", "key"), counts, qkv, strict=False):
        check(name, each, count, None, None)
    return attend_tasks(tasks, qkv, qkv[0].new_empty(qkv[0].shape))


def attend_tasks(tasks: Tasks, qkv: Sequence[Tensor], out: Tensor, biases: DistanceBiases | None = None) -> Tensor:
    """Writes the attention of all tasks to `out`, and returns it. Rows without a task are not written.

    qkv: (n, num_heads, head_dim) float32 queries, (rows, num_kv_heads, head_dim) keys and values, any stride between
    rows; equally many heads of queries share each head of keys.  out: as many rows as have tasks, from the first on, of
    num_heads * head_dim numbers.  Raises ValueError for other tensors.
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
    """(n, heads, head_dim) rows whose numbers are contiguous; a copy if they were not."""
    return rows if rows.stride()[1:] == (rows.shape[2], 1) else rows.contiguous()


def _keys(*runs: tuple[Spans, bool]) -> Spans | None:
    """The visible runs of keys, joined; None if none is visible."""
    visible = [spans for spans, is_visible in runs if is_visible]
    return functools.reduce(Spans.join, visible) if visible else None
