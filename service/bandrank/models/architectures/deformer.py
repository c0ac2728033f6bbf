"""Deformer: the lower layers encode query and candidate separately, the upper ones together (Cao et al. 2020,
"DeFormer").

Positions start at 0 in each text; candidates have token type 1, if the encoder has it.
"""

from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from bandrank.models.architectures.two_towers import TwoTowerConfig, TwoTowerScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.families import build_head
from bandrank.models.layers.patterns import FULL
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide
from bandrank_kernels.arrays import indices_within, offsets
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import PackedRows


@dataclass(frozen=True, kw_only=True)
class DeformerConfig(TwoTowerConfig):
    """The settings of a Deformer, saved in config.json.

    split: the number of lower layers.  candidate_cls: whether a candidate starts with [CLS] too, as in the MixEncoder
    paper's code, unlike the original.
    Raises ValueError unless there are both lower and upper layers, and for an encoder that is causal or biases
    distances.
    """

    split: int
    candidate_cls: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.split < self.encoder.num_layers:
            raise ValueError(f"split must be within 1..{self.encoder.num_layers - 1}, got {self.split}")
        if self.encoder.causal:
            raise ValueError("[CLS] attends to query and candidate, which a causal encoder does not let it")
        if self.encoder.biases_distances:
            raise ValueError("positions begin again in a candidate; biases of distances take only ones that go on")


class Deformer(TwoTowerScorer):
    """Scores a candidate by the last [CLS] state of query and candidate together."""

    architecture: ClassVar[str] = "deformer"
    config_class: ClassVar[type] = DeformerConfig
    config: DeformerConfig
    attention = FULL  # of the upper layers

    def __init__(self, config: DeformerConfig) -> None:
        super().__init__(config)
        if not config.candidate_cls:
            self.candidate_template = replace(self.candidate_template, prefix=())
        self.head = build_head(config.encoder)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The rows of query and candidate, weighted by the share of the upper layers."""
        return (query_tokens + candidate_rows) * (1 - self.config.split / self.config.encoder.num_layers)

    def query_rows(self, query_tokens: int) -> float:
        """The rows of the query, weighted by the share of the lower layers."""
        return query_tokens * self.config.split / self.config.encoder.num_layers

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(total, hidden_size) each token's state between the lower and the upper layers."""
        token_type = int(self.config.encoder.num_token_types > 1)
        states = tower.read(self.encoder, tokens, token_type=token_type, layers=slice(self.config.split))
        return Ragged(states.values.float(), states.cu_seqlens)

    def candidate_side(self) -> CandidateSide:
        """The encoder without its upper layers."""
        split, num_layers = self.config.split, self.config.encoder.num_layers
        upper = tuple(f"encoder.layers.{layer}." for layer in range(split, num_layers))
        weights = self._candidate_side((), ("encoder.",)).weights
        return CandidateSide(
            {"encoder": asdict(replace(self.config.encoder, num_layers=split))},
            {name: tensor for name, tensor in weights.items() if not name.startswith(upper)},
        )

    def score_some(self, batch: ScoreBatch) -> Tensor:
        return self.score_together(batch)

    def score_together(self, batch: ScoreBatch, *, cls_only: bool = True) -> Tensor:
        """`score`. cls_only: whether the last layer runs for [CLS] alone, which changes scores by rounding at most."""
        queries = tower.read(self.encoder, batch.queries, layers=slice(self.config.split))
        # Each candidate has a copy of its query; the [CLS] rows of all copies come first (as in layers/packing.py).
        owner = batch.candidate_query
        cls = queries.cu_seqlens[:-1][owner]
        others = queries.lengths[owner] - 1
        copies = np.concatenate([cls, np.repeat(cls + 1, others) + indices_within(others)])
        of_row = np.concatenate(
            [np.zeros_like(cls), indices_within(others) + 1, indices_within(batch.candidates.lengths)]
        )
        chosen, positions = to_device([torch.from_numpy(copies), torch.from_numpy(of_row)], queries.values.device)
        hidden = torch.cat([queries.values[chosen], batch.candidates.values.to(queries.values)])
        rows = PackedRows(offsets(others), batch.candidates.cu_seqlens, np.arange(len(owner)))
        plan = self.encoder.plan(rows, FULL)
        first = self.config.split
        if cls_only:
            cls_states = self.encoder.forward_cls(hidden, positions, plan, len(owner), first=first)
        else:
            cls_states = self.encoder(hidden, positions, plan, layers=slice(first, None))[: len(owner)]
        return self.head(cls_states)  # type: ignore[no-any-return]
