"""Decoders: states depend only on the tokens before them (Qwen2, arXiv 2407.10671; Qwen3, arXiv 2505.09388)."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.encoders.protocol import ALL
from bandrank.models.layers.block import Block
from bandrank.models.layers.causal import CausalPlan, Continuations, NativeCausalPlan, PaddedCausalPlan
from bandrank.models.layers.decoder_block import DecoderBlock
from bandrank.models.layers.execution import Execution
from bandrank_kernels.arrays import Offsets, offsets
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows


class Decoder(nn.Module):
    """Implements `Encoder` for texts that are encoded apart, and runs prefixes once for all of their continuations."""

    execution = Execution()

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config: EncoderConfig = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_layers))
        self.layers: Sequence[DecoderBlock] = layers  # type: ignore[assignment]  # it forgets their type
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.windows: Sequence[int | None] = [None]

    @property
    def device(self) -> torch.device:
        return self.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.word.weight.dtype

    def prepare_for(self, execution: Execution) -> None:
        self.execution = execution

    def word_vectors(self, ids: Tensor) -> Tensor:
        return self.word(ids)  # type: ignore[no-any-return]

    def embed(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        return self.embed_words(self.word_vectors(ids), positions, token_types)

    def embed_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        del positions, token_types  # positions turn queries and keys, and there are no types
        return words

    def plan(self, rows: PackedRows, pattern: AttentionPattern, capacity: Capacity | None = None) -> CausalPlan:
        """The plan of texts that are encoded apart, each of which is a query without candidates.

        Raises ValueError if there are candidates: rows of a decoder are not packed like those of an encoder.
        """
        del pattern, capacity
        if rows.num_candidates:
            raise ValueError("a decoder does not attend in the pattern of a cross-encoder; use plan_continuations")
        return self.plan_texts(rows.cu_queries)

    def plan_texts(self, cu_seqlens: Offsets) -> CausalPlan:
        plan = self.plan_continuations(Continuations(cu_seqlens, offsets([]), np.zeros(0, np.int64)))
        return plan.bind(to_device(list(plan.host_tables), self.device))

    def plan_masked(self, seen: Tensor) -> AttentionPlan:
        raise NotImplementedError("a decoder masks no keys")

    def plan_continuations(self, layout: Continuations) -> CausalPlan:
        """The plan of prefixes and continuations, still in host memory."""
        return NativeCausalPlan(layout) if self.execution.backend == "native" else PaddedCausalPlan.of(layout)

    def forward(self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, *, layers: slice = ALL) -> Tensor:
        for layer in [*self.layers][layers]:
            hidden = layer(hidden, positions, plan)
        return self.norm(hidden) if layers == ALL else hidden

    def forward_last(self, hidden: Tensor, positions: Tensor, plan: CausalPlan, last: Tensor) -> Tensor:
        """(n, hidden_size) output for the last row of each continuation. hidden: the input of the first layer.

        last: (n,) int64, `Continuations.last_rows`.
        """
        for layer in [*self.layers][:-1]:
            hidden = layer(hidden, positions, plan)
        return self.norm(self.layers[-1].forward_last(hidden, positions, plan, last))  # type: ignore[no-any-return]

    def forward_each(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, rows: Tensor, *, first: int = 0
    ) -> Tensor:
        causal = cast("CausalPlan", plan)  # what `plan_texts` gives
        hidden = self.forward(hidden, positions, causal, layers=slice(first, -1))
        return self.norm(self.layers[-1].forward_each(hidden, positions, causal, rows))  # type: ignore[no-any-return]

    def forward_cls(
        self, hidden: Tensor, positions: Tensor, plan: AttentionPlan, num_candidates: int, *, first: int = 0
    ) -> Tensor:
        raise NotImplementedError("a decoder has no [CLS]")

    def layer(self, index: int) -> Block:
        return self.layers[index]
