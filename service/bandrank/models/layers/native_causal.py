"""Causal attention in texts that begin alike, by the CPU kernels: each row by itself, the same bits in any batch."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from bandrank.models.layers.causal import CausalPlan, Continuations
from bandrank_kernels.arrays import Offsets
from bandrank_kernels.native.checks import check
from bandrank_kernels.windowed_attention.spans import Spans
from bandrank_kernels.windowed_attention.tasks import WINDOW, attend_tasks, attend_whole, tasks_of


class NativeCausalPlan(CausalPlan):
    """A run of keys for the prefix, and a band for the rows of a text up to each row."""

    def __init__(self, layout: Continuations) -> None:
        super().__init__([], [])
        prefixes, own = _spans(layout.cu_prefixes), _spans(layout.cu_continuations, int(layout.cu_prefixes[-1]))
        shared = prefixes.take(layout.prefix)
        self._num_rows = int(layout.cu_prefixes[-1] + layout.cu_continuations[-1])
        everything = self._num_rows  # no text is longer
        texts = tasks_of(prefixes, None, everything, causal=True), tasks_of(own, shared, everything, causal=True)
        self._tasks = np.concatenate(texts)
        alone = _spans(np.arange(len(layout.prefix) + 1))
        self._last_tasks = tasks_of(alone, shared.join(own))
        self._last_tasks[:, WINDOW] = 0  # one row, for which there is a faster way than for several

    def bind(self, tables: Sequence[Tensor]) -> "NativeCausalPlan":
        del tables  # there are none
        return self

    def attend_grouped(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend_whole(self._tasks, self._num_rows, (query, key, value))

    def attend_last(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        check("query", query, len(self._last_tasks), None, None)
        check("key", key, self._num_rows, None, None)
        return attend_tasks(self._last_tasks, (query, key, value), query.new_empty(query.shape))


def _spans(cu_seqlens: Offsets, first: int = 0) -> Spans:
    """The sequences that are between these offsets from row `first` on."""
    return Spans(first + cu_seqlens[:-1, None], np.diff(cu_seqlens)[:, None])
