"""VIRT: two towers with cross-attention in the last layer (Li et al. 2021, arXiv 2112.04195).

No code was published; this is a reconstruction. The last layer's projections Q, K, V of query rows x and candidate rows
y give M_xy = softmax(Q_x K_y^T / sqrt(head_dim)) and M_yx likewise; the means over rows of M_xy V_y and of M_yx V_x are
compared. The paper trains the towers by distilling a cross-encoder's attention maps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from bandrank.models.architectures.two_towers import LateInteractionConfig, LateInteractionScorer
from bandrank.models.encoders import tower
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.linear import Linear, LinearLayer
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide
from bandrank_kernels.arrays import Bools, Ints, Offsets
from bandrank_kernels.grouping import like_lengths

BLOCK_ROWS = 4096  # candidate rows compared at once: 6 MB of 384 dimensions stay in a CPU's cache


@dataclass(frozen=True, kw_only=True)
class VIRTConfig(LateInteractionConfig):
    """The settings of a VIRT, saved in config.json.

    encoder: counts all layers, though the last has only the projections of query, key and value.
    Raises ValueError for an encoder of fewer than 2 layers.
    """

    similarity: Literal["cosine", "dot"] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder.num_layers < 2:
            raise ValueError(f"an encoder of at least 2 layers is needed, got {self.encoder.num_layers}")


class VIRT(LateInteractionScorer):
    """Scores a candidate by the similarity of what query and candidate attend to in each other."""

    architecture: ClassVar[str] = "virt"
    config_class: ClassVar[type] = VIRTConfig
    config: VIRTConfig

    def __init__(self, config: VIRTConfig) -> None:
        super().__init__(config, encoder=replace(config.encoder, num_layers=config.encoder.num_layers - 1))
        self.interaction = Linear(config.encoder.hidden_size, 3 * config.encoder.hidden_size)

    def initialise(self, encoder: Encoder) -> Self:
        """Copies the encoder; the interaction takes the projections of its last layer."""
        self.encoder.load_state_dict(
            {name: tensor for name, tensor in encoder.state_dict().items() if name in self.encoder.state_dict()}
        )
        self.interaction.copy_rows(encoder.layer(-1).qkv)
        return self

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The products of candidate rows with the heads of query rows, in both directions, as a fraction of a row's
        products in the encoder.
        """
        encoder = self.config.encoder
        return self.rows_worth(candidate_rows * 2 * encoder.num_heads * query_tokens * encoder.hidden_size)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(total, hidden_size) each token's state before the last layer."""
        states = tower.read(self.encoder, tokens)
        return Ragged(states.values.float(), states.cu_seqlens)

    def candidate_side(self) -> CandidateSide:
        return self._candidate_side(("encoder",), ("encoder.",))

    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        crossing = _Crossing(query, self.interaction, self.config.encoder.num_heads)
        values, scores = candidates.values, torch.empty(len(candidates), device=query.device)
        for chosen, indices, real in padded_groups(candidates.cu_seqlens, BLOCK_ROWS):
            rows = values[torch.from_numpy(indices).to(values.device)].to(query)
            in_candidate, in_query = crossing.attend(rows, torch.from_numpy(real).to(rows.device))
            similarities = (
                cosine_similarity(in_candidate, in_query)
                if self.config.similarity == "cosine"
                else (in_candidate * in_query).sum(-1)
            )
            scores[torch.from_numpy(chosen).to(rows.device)] = similarities
        return scores


class _Crossing:
    """The last layer for one query, with the projections of candidate rows moved to the query's side.

    Q_x K_y^T = (Q_x W_K) y^T and Q_y K_x^T = y (W_Q^T K_x^T) + b_Q K_x^T, where b_K drops out, since it shifts all
    logits of a softmax alike; and W_V is applied to averages of rows. So no candidate row is projected.
    """

    def __init__(self, states: Tensor, interaction: LinearLayer, num_heads: int) -> None:
        """states: (query_len, hidden_size)."""
        query_rows, key_rows, self._value_rows = interaction.thirds
        self._interaction = interaction
        projected = interaction(states).view(len(states), 3, num_heads, -1)
        query, key, self._values = projected.permute(1, 2, 0, 3)  # (num_heads, query_len, head_dim)
        scale = query.shape[-1] ** -0.5
        absorbed = [interaction.absorb(query, key_rows), interaction.absorb(key, query_rows)]
        self._keys = torch.cat(absorbed).flatten(0, 1) * scale
        self._biases = interaction.absorb_bias(key.float(), query_rows) * scale  # (num_heads, query_len)

    def attend(self, rows: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The means over rows of M_xy V_y and of M_yx V_x, both (n, hidden_size) float32.

        rows: (n, width, hidden_size) padded candidates.  real: (n, width) bool, False for padding; at least one row of
        each candidate is real.
        """
        scores = (self._keys @ rows.flatten(0, 1).T).float()
        to_candidate, to_query = scores.view(2, *self._biases.shape, *real.shape)  # (num_heads, query_len, n, width)
        weights = to_candidate.masked_fill(~real, -torch.inf).softmax(-1).mean(1)  # (num_heads, n, width)
        averages = weights.transpose(0, 1) @ rows.float()  # (n, num_heads, hidden_size)
        in_candidate = self._interaction.project_heads(averages.transpose(0, 1), self._value_rows).transpose(0, 1)

        weights = (to_query + self._biases[..., None, None]).softmax(1)
        weights = (weights * real).sum(-1) / real.sum(-1)  # (num_heads, query_len, n)
        in_query = torch.einsum("hln,hld->nhd", weights, self._values.float())
        return in_candidate.flatten(1), in_query.flatten(1)


def padded_groups(cu_seqlens: Offsets, max_rows: int) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Yields groups by `like_lengths`, shortest first: (n,) indices of sequences, (n, width) indices of rows, and an
    (n, width) mask that is False for padding, where the index is that of the sequence's last row, or 0.
    """
    lengths = np.diff(cu_seqlens)
    for chosen in like_lengths(lengths, max_rows):
        index = np.arange(lengths[chosen[-1]])
        rows = cu_seqlens[chosen, None] + np.minimum(index, lengths[chosen, None] - 1)
        yield chosen, rows.clip(min=0), index < lengths[chosen, None]
