"""What an architecture may ask of an encoder, whatever its family."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.block import Block
from bandrank.models.layers.execution import Execution
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows

ALL = slice(None)


class Encoder(Protocol):
    """Turns token ids into states: `embed`, `plan` once for each batch, then the layers.

    config: its shape and the cost of a row.
    Rows are packed without padding, (total, hidden_size). positions: (total,) int64 on the device, counted in each
    text. Encoders with a position table add it in `embed`; those with rotary positions turn queries and keys by it.
    """

    config: EncoderConfig

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and so of all states."""

    def prepare_for(self, execution: Execution) -> None:
        """Decides which kernels compute the attention of the plans to come."""

    def word_vectors(self, ids: Tensor) -> Tensor:
        """(total, hidden_size) rows of the word table. ids: (total,) int64."""

    def embed(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """(total, hidden_size) the states that enter the first layer. ids, token_types: (total,) int64."""

    def embed_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """The same from word vectors, which need not be those of the table. words: (total, hidden_size)."""

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> AttentionPlan:
        """The plan of a batch for all layers. Layers that see less than others narrow the pattern's window.

        capacity: the bucket that the launches are sized for. Raises what `plan_attention` raises.
        """

    def __call__(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, *, layers: slice = ALL) -> Tensor:
        """The states that leave the last of `layers`. hidden: the states that enter the first of them."""

    def forward_cls(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int, *, first: int = 0
    ) -> Tensor:
        """(num_candidates, hidden_size) the last layer's output for the [CLS] rows, which come first; what it computes
        for other rows is left out where nothing depends on it.

        hidden: the states that enter layer `first`.
        """

    def layer(self, index: int) -> Block:
        """One layer, for architectures whose candidates join in between, or that start from its weights."""

    def state_dict(self) -> dict[str, Any]:
        """Weights by name."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Copies weights. Raises RuntimeError if names or shapes differ."""
