"""Causal attention in texts that begin alike: [each prefix once | continuations].

A continuation's rows attend to its prefix and to the rows before them in the continuation, as if the two were one text.
So the keys and values of a prefix are computed once for all of its continuations.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels.arrays import Ints, Offsets
from bandrank_kernels.windowed_attention import AttentionPlan
from bandrank_kernels.windowed_attention.native import attend_whole
from bandrank_kernels.windowed_attention.spans import WINDOW, Spans, tasks_of

# Rows of a text that attend at once: a mask has this many rows, and a column for each row of the text.
RUN_ROWS = 256
# The most rows and keys of a group of runs; keys are copied, so that runs with the same prefix are one batch.
GROUP_ROWS, GROUP_KEYS = 4096, 16_384
# Runs whose numbers of keys differ by no more than this are padded to the longest.
LONGER, FEW_KEYS = 1.25, 8


@dataclass(frozen=True)
class Continuations:
    """The layout of a batch's rows, in host memory.

    cu_prefixes: (p + 1,) offsets of the prefixes.  cu_continuations: (n + 1,) offsets of the continuations, which come
    behind the prefixes.  prefix: (n,) the index of each continuation's prefix. Either may be empty, but not both.
    """

    cu_prefixes: Offsets
    cu_continuations: Offsets
    prefix: Ints

    @property
    def last_rows(self) -> Ints:
        """(n,) the last row of each continuation, or of its prefix if it is empty."""
        ends = self.cu_prefixes[-1] + self.cu_continuations[1:]
        return np.where(np.diff(self.cu_continuations) > 0, ends, self.cu_prefixes[1:][self.prefix]) - 1


@dataclass(frozen=True)
class _Run:
    """Consecutive rows that attend to the rows of a prefix and of a text of their own, up to themselves.

    first, rows: the index of the first query among those that `_attend` gets, and the number of queries.  prefix:
    (start, length).  own: the first row of the text.  seen: how many of its rows the last query sees; each query before
    sees one less.
    """

    first: int
    rows: int
    prefix: tuple[int, int]
    own: int
    seen: int


@dataclass(frozen=True)
class _Group:
    """Runs with the same prefix, padded to the longest; padding repeats a run's last row, and no other row sees it.

    queries: (n, rows) indices of the queries.  kept: the indices in (n * rows,) that are not padding.
    keys: (n, keys) rows of the texts.  unmasked: (n, 1) how many keys the first query sees.
    """

    prefix: tuple[int, int]
    queries: Tensor
    kept: Tensor
    keys: Tensor
    unmasked: Tensor

    @classmethod
    def of(cls, runs: Sequence[_Run]) -> Self:
        most_rows, most_keys = max(run.rows for run in runs), max(run.seen for run in runs)
        first, rows, own, seen = np.array([(run.first, run.rows, run.own, run.seen) for run in runs]).T[..., None]
        row, key = np.arange(most_rows), np.arange(most_keys)
        tables = (
            first + np.minimum(row, rows - 1),
            np.flatnonzero(row < rows),
            own + np.minimum(key, np.maximum(seen, 1) - 1),
            seen - rows + 1,
        )
        return cls(runs[0].prefix, *map(torch.from_numpy, tables))

    @property
    def tables(self) -> list[Tensor]:
        return [self.queries, self.kept, self.keys, self.unmasked]

    def on_device(self, tables: Iterator[Tensor]) -> Self:
        """The group on the next few of `tables`, which are on the device."""
        queries, kept, keys, unmasked = (next(tables) for _ in self.tables)
        return replace(self, queries=queries, kept=kept, keys=keys, unmasked=unmasked)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(len(kept), num_heads, head_dim) averages of values. Arguments as in `_attend`."""
        num_runs, num_rows = self.queries.shape
        num_kv_heads, head_dim = key.shape[1:]
        start, length = self.prefix
        shared = slice(start, start + length)
        keys, values = (
            torch.cat([each[shared].expand(num_runs, -1, -1, -1), each[self.keys]], 1).transpose(1, 2)
            for each in (key, value)
        )  # (n, num_kv_heads, prefix + keys, head_dim)
        # The heads of queries that share a head of keys become rows of one head, so that no key is copied for them.
        queries = query[self.queries].view(num_runs, num_rows, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        row, place = (torch.arange(size, device=query.device) for size in (num_rows, keys.shape[2]))
        mask = place < (length + self.unmasked + row)[..., None]  # (n, rows, prefix + keys)
        attended = scaled_dot_product_attention(
            queries.flatten(2, 3), keys, values, attn_mask=mask.repeat(1, queries.shape[2], 1)[:, None]
        )
        attended = attended.view_as(queries).permute(0, 3, 1, 2, 4)  # (n, rows, num_kv_heads, group, head_dim)
        return attended.reshape(num_runs * num_rows, -1, head_dim)[self.kept]


class CausalPlan(AttentionPlan):
    """The attention of one batch, for layers with fewer heads of keys and values than of queries."""

    def attend(self, qkv: Tensor) -> Tensor:
        return self.attend_grouped(*qkv.unbind(1))

    @abstractmethod
    def attend_last(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(n, num_heads, head_dim) attention of the last row of each continuation alone.

        query: (n, num_heads, head_dim) of these rows.  key, value: (num_rows, num_kv_heads, head_dim) of all rows.
        """


class PaddedCausalPlan(CausalPlan):
    """Groups of runs that are padded to the same length, in plain torch."""

    def __init__(self, all_rows: Sequence[_Group], last_rows: Sequence[_Group]) -> None:
        self._all, self._last = all_rows, last_rows
        self.host_tables = [table for group in (*all_rows, *last_rows) for table in group.tables]

    @classmethod
    def of(cls, layout: Continuations) -> "PaddedCausalPlan":
        """The plan of a batch, in host memory."""
        return cls(_groups(_all_rows(layout)), _groups(_last_rows(layout)))

    def bind(self, tables: Sequence[Tensor]) -> "PaddedCausalPlan":
        rest = iter(tables)
        return PaddedCausalPlan(
            [group.on_device(rest) for group in self._all],
            [group.on_device(rest) for group in self._last],
        )

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attend(self._all, query, key, value)

    def attend_last(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return _attend(self._last, query, key, value)


class NativeCausalPlan(CausalPlan):
    """Tasks for the CPU kernels: a row gets the same bits in any batch."""

    def __init__(self, layout: Continuations) -> None:
        prefixes, own = _spans(layout.cu_prefixes), _spans(layout.cu_continuations, int(layout.cu_prefixes[-1]))
        shared = prefixes.take(layout.prefix)
        self._num_rows = window = int(layout.cu_prefixes[-1] + layout.cu_continuations[-1])  # no text is longer
        tasks = np.concatenate(
            [tasks_of(prefixes, None, window, causal=True), tasks_of(own, shared, window, causal=True)]
        )
        # Threads take equally many tasks, and those of a text's last rows see most keys: each gets early and late ones.
        threads, count = torch.get_num_threads(), len(tasks)
        piece = np.arange(count) * 2 * threads // max(1, count)
        self._tasks = tasks[np.argsort(np.minimum(piece, 2 * threads - 1 - piece), kind="stable")]
        self._last_tasks = tasks_of(_spans(np.arange(len(layout.prefix) + 1)), shared.join(own))
        self._last_tasks[:, WINDOW] = 0  # single rows have a faster path

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_whole(self._tasks, (self._num_rows,) * 2, query, key, value)

    def attend_last(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_whole(self._last_tasks, (len(self._last_tasks), self._num_rows), query, key, value)


def _spans(cu_seqlens: Offsets, first: int = 0) -> Spans:
    """Sequences that lie end to end from row `first` on."""
    return Spans(first + cu_seqlens[:-1, None], np.diff(cu_seqlens)[:, None])


def _attend(groups: Sequence[_Group], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(m, num_heads, head_dim). query: (m, num_heads, head_dim).  key, value: (num_rows, num_kv_heads, head_dim)."""
    attended = torch.empty_like(query)
    for group in groups:
        attended[group.queries.flatten()[group.kept]] = group.attend(query, key, value)
    return attended


def _all_rows(layout: Continuations) -> Iterator[_Run]:
    """Yields the runs of all rows; prefixes themselves have no prefix."""
    prefixes = [*pairwise(layout.cu_prefixes.tolist())]
    texts = [((0, 0), begin, end) for begin, end in prefixes]
    first = int(layout.cu_prefixes[-1])
    for (begin, end), prefix in zip(pairwise(layout.cu_continuations.tolist()), layout.prefix.tolist(), strict=True):
        start, stop = prefixes[prefix]
        texts.append(((start, stop - start), first + begin, first + end))
    for shared, begin, end in texts:
        for start in range(begin, end, RUN_ROWS):
            stop = min(start + RUN_ROWS, end)
            yield _Run(start, stop - start, shared, begin, stop - begin)


def _last_rows(layout: Continuations) -> Iterator[_Run]:
    """Yields a run for the last row of each continuation; its query has the continuation's index."""
    first = int(layout.cu_prefixes[-1])
    ends = layout.cu_continuations.tolist()
    for index, prefix in enumerate(layout.prefix.tolist()):
        start, stop = layout.cu_prefixes[prefix : prefix + 2].tolist()
        begin, end = ends[index : index + 2]
        if begin == end:  # the last row is the prefix's, and so are its keys
            yield _Run(index, 1, (0, 0), start, stop - start)
        else:
            yield _Run(index, 1, (start, stop - start), first + begin, end - begin)


def _groups(runs: Iterable[_Run]) -> list[_Group]:
    """Groups runs with the same prefix and about the same number of keys."""
    groups = []
    ordered = sorted(runs, key=lambda run: (run.prefix, run.seen, run.rows))
    for prefix, alike in groupby(ordered, key=lambda run: run.prefix):
        group: list[_Run] = []
        for run in alike:
            rows, keys = max(run.rows, *(each.rows for each in group), 0), prefix[1] + run.seen
            fits = (len(group) + 1) * rows <= GROUP_ROWS and (len(group) + 1) * keys <= GROUP_KEYS
            if group and not (fits and run.seen <= LONGER * group[0].seen + FEW_KEYS):
                groups.append(_Group.of(group))
                group = []
            group.append(run)
        groups.append(_Group.of(group))
    return groups
