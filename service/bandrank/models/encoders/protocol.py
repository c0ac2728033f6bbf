"""The interface of encoders of any family."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import Block
from bandrank.models.layers.execution import Execution
from bandrank_kernels.arrays import Offsets
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows

ALL = slice(None)


class Encoder(Protocol):
    """Turns token ids into states: `embed`, `plan` once for each batch, then the layers.

    Rows are packed without padding, (total, hidden_size). positions: (total,) int64 on the device, from 0 in each
    text; a position table is added in `embed`, rotary positions turn queries and keys in the layers.
    """

    config: EncoderConfig

    @property
    def windows(self) -> Sequence[int | None]:
        """The windows of the layers, without repetitions; [None] if all are global."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and states."""

    def prepare_for(self, execution: Execution) -> None:
        """Decides which kernels compute the attention of plans from now on."""

    def word_vectors(self, ids: Tensor) -> Tensor:
        """(total, hidden_size) rows of the word embedding table. ids: (total,) int64."""

    def embed(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """(total, hidden_size) states that enter the first layer. ids, token_types: (total,) int64."""

    def embed_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """`embed` for given word vectors, (total, hidden_size), such as learnt ones."""

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        """The attention plan of a batch for all layers; local layers narrow the pattern's window.

        capacity: the bucket that launches are sized for. Raises the errors of `plan_attention`.
        """

    def plan_texts(self, cu_seqlens: Offsets) -> AttentionPlan:
        """The plan in which every row attends to its text: in local layers to the rows within their window.

        cu_seqlens: (n + 1,) offsets of the texts' rows.
        """

    def plan_masked(self, seen: Tensor) -> AttentionPlan:
        """The plan of texts of equal length, one behind the other, some of whose rows are masked as keys.

        seen: (n, len) bool on the device, False for masked rows.
        """

    def __call__(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, *, layers: slice = ALL) -> Tensor:
        """(total, hidden_size) output of the last of `layers`. hidden: the input of the first of them."""

    def forward_cls(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int, *, first: int = 0
    ) -> Tensor:
        """(num_candidates, hidden_size) output of the last layer for the [CLS] rows, which come first. The last layer
        skips what only other rows need.

        hidden: the input of layer `first`.
        """

    def forward_each(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor, *, first: int = 0
    ) -> Tensor:
        """(n, hidden_size) output of the last layer for one row of each text; it skips what only the others need.

        hidden: the input of layer `first`.  plan: as from `plan_texts`.  rows: (n,) int64 indices on the device, in the
        order of the texts.
        """

    def layer(self, index: int) -> Block:
        """One layer, for architectures that work between layers or copy a layer's weights."""

    def state_dict(self) -> dict[str, Any]:
        """Weights by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Copies weights from a mapping. Raises RuntimeError if names or shapes differ."""
