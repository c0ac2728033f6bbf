"""Poly-encoders: a query becomes m vectors, to which each candidate's one vector attends (Humeau et al. 2020).

The paper's context is our query. With a shared tower this is the MixEncoder paper's baseline; with separate towers and
states scaled by 0.06, ParlAI's model.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bandrank.models.architectures.two_towers import LateInteractionConfig, LateInteractionScorer
from bandrank.models.encoders import tower
from bandrank.models.layers.code_attention import attend_codes
from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide

BLOCK_CANDIDATES = 4096  # candidates compared at once: with 64 codes their weights take 1 MB


@dataclass(frozen=True, kw_only=True)
class PolyEncoderConfig(LateInteractionConfig):
    """The settings of a poly-encoder, saved in config.json.

    codes: "learnt" codes attend to the query's states; with "first" its first m states are the vectors, or fewer.
    num_codes: m.  reduction: how a candidate's states become its vector; "cls" is ParlAI's "first".
    separate_towers: whether candidates have a second encoder.
    scaled: whether the products of both attentions are divided by sqrt(hidden_size), unlike in the paper.
    output_scaling: a factor on the last states of both towers.
    Raises ValueError if num_codes is below 1.
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
    """Scores a candidate by the dot product of its vector with the average of the query's vectors, weighted by the
    candidate's attention to them.
    """

    architecture: ClassVar[str] = "poly_encoder"
    config_class: ClassVar[type] = PolyEncoderConfig
    config: PolyEncoderConfig

    def __init__(self, config: PolyEncoderConfig) -> None:
        super().__init__(config)
        hidden_size = config.encoder.hidden_size
        self.scale = hidden_size**-0.5 if config.scaled else 1.0
        learnt = config.codes == "learnt"
        self.query_codes = nn.Parameter(torch.empty(config.num_codes, hidden_size).uniform_()) if learnt else None

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The products with m vectors, as a fraction of a row's products in the encoder."""
        del query_tokens, candidate_rows
        return self.rows_worth(self.config.num_codes * self.config.encoder.hidden_size)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(n, hidden_size) one vector for each candidate."""
        states = tower.read(self.candidate_encoder or self.encoder, tokens)
        vectors = pool(states, self.config.reduction) * self.config.output_scaling
        return Ragged(vectors, np.arange(len(tokens) + 1))

    def candidate_side(self) -> CandidateSide:
        return self._candidate_side(("encoder", "reduction", "output_scaling"), (self.candidate_prefix,))

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
        """(m, hidden_size), or fewer "first" states of a shorter query. states: (query_len, hidden_size)."""
        if self.query_codes is None:
            return states[: self.config.num_codes]
        return attend_codes(self.query_codes, states, self.scale)
