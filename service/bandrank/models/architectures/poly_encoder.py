"""Poly-encoders: a query becomes m vectors; each candidate, one vector, looks at them (Humeau et al. 2020).

The paper's context is our query. With one shared tower this is the baseline of the MixEncoder paper; with separate
towers, and states scaled by 0.06, ParlAI's.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from bandrank.models.architectures.two_towers import LateInteractionScorer, TwoTowerConfig
from bandrank.models.encoders import tower
from bandrank.models.encoders.families import build_encoder
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.code_attention import attend_codes
from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide

BLOCK_CANDIDATES = 4096  # looked at in one go: with 64 codes their weights take 1 MB


@dataclass(frozen=True, kw_only=True)
class PolyEncoderConfig(TwoTowerConfig):
    """What a poly-encoder is, saved beside its weights.

    codes: "learnt" codes that attend to the query's states, or the "first" states themselves; a shorter query has
    fewer.  num_codes: m.  reduction: how a candidate's states become its vector; "cls" is ParlAI's "first".
    separate_towers: whether candidates have an encoder of their own.
    scaled: whether the products in both attentions are divided by the root of hidden_size; the paper's are not.
    output_scaling: factor on the last states of both towers.
    """

    codes: Literal["learnt", "first"] = "learnt"
    num_codes: int = 64
    reduction: Pooling = "mean"
    separate_towers: bool = False
    scaled: bool = False
    output_scaling: float = 1.0
    max_query_tokens: int = 360

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_codes < 1:
            raise ValueError(f"num_codes must be at least 1, got {self.num_codes}")


class PolyEncoder(LateInteractionScorer):
    """Scores a candidate's vector by its dot product with the query's vectors, averaged as the candidate sees them."""

    architecture: ClassVar[str] = "poly_encoder"
    config_class: ClassVar[type] = PolyEncoderConfig
    config: PolyEncoderConfig

    def __init__(self, config: PolyEncoderConfig) -> None:
        super().__init__(config)
        hidden_size = config.encoder.hidden_size
        self.scale = hidden_size**-0.5 if config.scaled else 1.0
        self.candidate_encoder: Encoder | None = build_encoder(config.encoder) if config.separate_towers else None
        learnt = config.codes == "learnt"
        self.query_codes = nn.Parameter(torch.empty(config.num_codes, hidden_size).uniform_()) if learnt else None

    def initialise(self, encoder: Encoder) -> Self:
        """Both towers start as the encoder; codes keep their random start."""
        super().initialise(encoder)
        if self.candidate_encoder is not None:
            self.candidate_encoder.load_state_dict(encoder.state_dict())
        return self

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """One product with m vectors, as a part of a row's through the encoder."""
        del query_tokens, candidate_rows
        return self.rows_worth(self.config.num_codes * self.config.encoder.hidden_size)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """One vector each."""
        states = tower.read(self.candidate_encoder or self.encoder, tokens)
        vectors = pool(states, self.config.reduction) * self.config.output_scaling
        return Ragged(vectors, np.arange(len(tokens) + 1))

    def candidate_side(self) -> CandidateSide:
        tower = "encoder." if self.candidate_encoder is None else "candidate_encoder."
        return self._candidate_side(("encoder", "reduction", "output_scaling"), (tower,))

    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        vectors = self._query_vectors(query.float() * self.config.output_scaling)
        scores = []
        for block in torch.split(candidates.values, BLOCK_CANDIDATES):
            with in_float32(vectors.device):
                similarities = block.to(vectors) @ vectors.T  # (candidates, m)
            # The product with an average of vectors is the average of the products.
            scores.append((torch.softmax(similarities * self.scale, -1) * similarities).sum(-1))
        return torch.cat(scores)

    def _query_vectors(self, states: Tensor) -> Tensor:
        """(m, hidden_size); fewer of a query that has fewer than m "first" states. states: (query_len, hidden_size)."""
        if self.query_codes is None:
            return states[: self.config.num_codes]
        return attend_codes(self.query_codes, states, self.scale)
