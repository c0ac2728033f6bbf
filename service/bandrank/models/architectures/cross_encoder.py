"""Cross-encoders: query and candidate are encoded together (Nogueira & Cho 2019).

Full, Longformer, QDS-Transformer and sparse cross-encoders are one model with different attention patterns (Schlatt et
al. 2024, arXiv 2312.17649, section 3).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from bandrank.models.architectures.joint import JointConfig, JointScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers import passages
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import FULL
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(JointConfig):
    """The settings of a cross-encoder, saved in config.json.

    token_types: whether candidates have token type 1; if False, all rows have type 0.
    """

    pattern: AttentionPattern = FULL
    token_types: bool = True
    sentence_token: int | None = None


class CrossEncoder(JointScorer):
    """Scores a candidate by the last [CLS] state of the sequence of query and candidate."""

    architecture: ClassVar[str] = "cross_encoder"
    config_class: ClassVar[type] = CrossEncoderConfig

    def __init__(self, config: CrossEncoderConfig) -> None:
        super().__init__(config)
        self.config: CrossEncoderConfig = config
        self.attention = config.pattern
        self.candidate_template = replace(self.candidate_template, sentence_token=config.sentence_token)

    def score(self, batch: ScoreBatch) -> Tensor:
        return self.score_packed(batch, self.launch)

    def score_packed(self, batch: ScoreBatch, run: Callable[[PackedTokens], Tensor]) -> Tensor:
        """`score`, with `run` computing the packed batch: `launch`, or the replay of a CUDA graph."""
        if len(batch.candidates) == 0:
            return torch.empty(0, device=self.encoder.device)
        parts = passages.split(batch, self.config.max_tokens)
        packed = pack(
            parts.batch, self.config.pattern, cls_id=self.config.cls_id, sentence_token=self.config.sentence_token
        )
        return parts.best(run(packed), len(batch.candidates))

    def launch(self, packed: PackedTokens, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of a packed batch, launched kernel by kernel.

        cls_only: whether the last layer runs for [CLS] alone, which changes scores by no more than rounding.
        """
        plan = self.plan(packed.rows)
        return self.compute(PackedInputs.of(packed, plan, self.encoder.device), cls_only=cls_only)

    def plan(self, rows: PackedRows, capacity: Capacity | None = None) -> AttentionPlan:
        """The plan of a packed batch, as from `Encoder.plan`."""
        return self.encoder.plan(rows, self.config.pattern, capacity)

    def compute(self, inputs: PackedInputs, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of packed rows; only launches kernels, and never makes the host wait."""
        types = inputs.token_types if self.config.token_types else torch.zeros_like(inputs.token_types)
        hidden = self.encoder.embed(inputs.ids, inputs.positions, types)
        if cls_only:
            cls = self.encoder.forward_cls(hidden, inputs.positions, inputs.plan, inputs.num_candidates)
        else:
            cls = self.encoder(hidden, inputs.positions, inputs.plan)[: inputs.num_candidates]
        return self.head(cls)  # type: ignore[no-any-return]
