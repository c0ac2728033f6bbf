"""Cross-encoders whose sequence of query and candidate is one text to the encoder, as with ModernBERT, whose local
layers limit what query and [CLS] attend to as well (Warner et al. 2024, arXiv 2412.13663, section 2.1).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bandrank.models.architectures.joint import JointConfig, JointScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.layers import passages
from bandrank.models.layers.pooling import pool
from bandrank.models.ragged import Ragged


@dataclass(frozen=True, kw_only=True)
class SequenceCrossEncoderConfig(JointConfig):
    """The settings of a sequence cross-encoder, saved in config.json.

    pooling: what the head reads: the last state of [CLS], or the mean of all.
    """

    pooling: Literal["cls", "mean"] = "cls"


class SequenceCrossEncoder(JointScorer):
    """Scores a candidate by the pooled last states of the sequence of query and candidate."""

    architecture: ClassVar[str] = "sequence_cross_encoder"
    config_class: ClassVar[type] = SequenceCrossEncoderConfig

    def __init__(self, config: SequenceCrossEncoderConfig) -> None:
        super().__init__(config)
        self.config: SequenceCrossEncoderConfig = config

    def score(self, batch: ScoreBatch) -> Tensor:
        if len(batch.candidates) == 0:
            return torch.empty(0, device=self.encoder.device)
        parts = passages.split(batch, self.config.max_tokens)
        states = tower.read(self.encoder, sequences(parts.batch, self.config.cls_id))
        return parts.best(self.head(pool(states, self.config.pooling)), len(batch.candidates))


def sequences(batch: ScoreBatch, cls_id: int) -> Ragged:
    """[CLS], query and candidate of each candidate, in host memory; templates have put [SEP] behind both texts."""
    cls = torch.tensor([cls_id])
    pairs = enumerate(batch.candidate_query.tolist())
    return Ragged.from_tensors(
        [torch.cat([cls, batch.queries[query], batch.candidates[each]]) for each, query in pairs]
    )
