"""The implementation of encoders: embeddings and a stack of blocks, which each family composes in its own way."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import ALL
from bandrank.models.layers.block import Block
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.key_mask import KeyMaskPlan
from bandrank.models.layers.patterns import narrowed
from bandrank.models.layers.window_plans import for_windows, plan_within
from bandrank_kernels.arrays import Offsets
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    JoinedPlan,
    PackedRows,
    plan_attention,
    plan_local_attention,
)


class Stack(nn.Module):
    """Implements `Encoder`, where the methods are documented."""

    execution = Execution()

    def __init__(self, config: EncoderConfig, embeddings: Embeddings, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings
        self.layers: Sequence[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]  # it forgets their type
        self.head_dims = {block.window: block.head_dim for block in blocks}  # layers of a window have equal heads
        self.windows = list(self.head_dims)

    @property
    def device(self) -> torch.device:
        return self.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.word.weight.dtype

    @property
    def _projected(self) -> torch.dtype:
        """The dtype of queries, keys and values: that of the weights, or on a GPU under autocast that of products."""
        autocast = self.device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return torch.get_autocast_dtype("cuda") if autocast else self.dtype

    def word_vectors(self, ids: Tensor) -> Tensor:
        return self.embeddings.word(ids)  # type: ignore[no-any-return]

    def embed(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        return self.embeddings(ids, positions, token_types)  # type: ignore[no-any-return]

    def embed_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        return self.embeddings.of_words(words, positions, token_types)

    def prepare_for(self, execution: Execution) -> None:
        self.execution = execution

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        def plan_for(window: int | None) -> AttentionPlan:
            return plan_attention(rows, narrowed(pattern, window), **self._shape(window), capacity=capacity)

        return for_windows(self.windows, plan_for)

    def plan_texts(self, cu_seqlens: Offsets) -> AttentionPlan:
        rows, apart = PackedRows.of_texts(cu_seqlens), AttentionPattern.apart()

        def plan_for(window: int | None) -> AttentionPlan:
            if window is None:
                return plan_attention(rows, apart, **self._shape(None))
            return plan_local_attention(cu_seqlens, window, **self._shape(window))

        return self.plan(rows, apart) if self.windows == [None] else for_windows(self.windows, plan_for)

    def _shape(self, window: int | None) -> dict[str, Any]:
        """What plans of layers of this window depend on, besides a batch."""
        return {
            "device": self.device,
            "dtype": self._projected,
            "head_dim": self.head_dims[window],
            "backend": self.execution.backend,
        }

    def plan_masked(self, seen: Tensor) -> AttentionPlan:
        return for_windows(self.windows, partial(KeyMaskPlan.of, seen, self.dtype))

    def forward(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, *, layers: slice = ALL) -> Tensor:
        out = self._in_one(hidden, plan, layers)
        if out is not None:
            return out
        if isinstance(plan, JoinedPlan):
            arranged = self(plan.arrange(hidden), plan.arrange(positions), plan.texts, layers=layers)
            return plan.restore(arranged)
        for layer in [*self.layers][layers]:
            for step in layer.steps(hidden):
                hidden = step(hidden, positions, plan)
        return hidden

    def forward_cls(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int, *, first: int = 0
    ) -> Tensor:
        out = self._in_one(hidden, plan, slice(first, None), num_candidates)
        if out is not None:
            return out
        if isinstance(plan, JoinedPlan):
            hidden, positions = plan.arrange(hidden), plan.arrange(positions)
            return self.forward_each(hidden, positions, plan.texts, plan.cls, first=first)
        for layer in [*self.layers][first:-1]:  # not `forward`, during which the embeddings would stay in memory
            for step in layer.steps(hidden):
                hidden = step(hidden, positions, plan)
        return self.layer(-1).forward_cls(hidden, positions, plan, num_candidates)

    def forward_each(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor, *, first: int = 0
    ) -> Tensor:
        hidden = self.forward(hidden, positions, plan, layers=slice(first, -1))
        return self.layer(-1).forward_each(hidden, positions, plan, rows)

    def _in_one(
        self, hidden: Tensor, plan: AttentionPlan, layers: slice, num_candidates: int | None = None
    ) -> Tensor | None:
        """The output of the layers, for [CLS] alone if asked; None unless their attention plan computes them in one
        call.
        """
        blocks = [*self.layers][layers]  # a slice of a ModuleList is a new module, which takes 50 times as long
        whole = [block.whole for block in blocks if block.whole is not None]
        if not whole or len(whole) < len(blocks) or len(self.windows) > 1:
            return None
        return plan_within(plan, self.windows[0]).layers(hidden, whole, num_candidates)

    def layer(self, index: int) -> Block:
        return self.layers[index]
