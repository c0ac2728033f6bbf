"""Cross-encoders: query and candidate are encoded together (Nogueira & Cho 2019).

Full, Longformer, QDS-Transformer and sparse cross-encoders are one model with different attention patterns (Schlatt et
al. 2024, arXiv 2312.17649, section 3).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from bandrank.models.architectures.joint import JointConfig, JointScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.lexical import Lexical, LexicalConfig
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import FULL
from bandrank.models.packed_buckets import PackedBuckets
from bandrank.models.template import TextOf
from bandrank_kernels.windowed_attention import (
    AttentionPattern,
    AttentionPlan,
    Capacity,
    PackedRows,
    why_not_one_launch,
)


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(JointConfig):
    """The settings of a cross-encoder, saved in config.json.

    query_separators: how many `sep_id` stand between query and candidate.
    token_types: whether candidates have token type 1; if False, or if the encoder has one type, all rows have type 0.
    lexical: evidence of shared words that is added to the score, or None.
    sentence_token: the token id before each sentence of a candidate, whose rows join the query's (QDS-Transformer).
    Raises ValueError as JointConfig does, for a causal encoder, and for a sentence token that is outside the
    vocabulary, or that comes with an encoder that biases distances or a pattern in which candidates share their query.
    """

    sep_id: int
    pattern: AttentionPattern = FULL
    token_types: bool = True
    query_separators: int = 1
    sentence_token: int | None = None
    lexical: LexicalConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder.causal:
            raise ValueError("a causal encoder attends in no pattern; a sequence_cross_encoder takes one")
        if self.sentence_token is None:
            return
        if not 0 <= self.sentence_token < self.encoder.vocab_size:
            raise ValueError(
                f"sentence_token must be within 0..{self.encoder.vocab_size - 1}, the vocabulary, got "
                f"{self.sentence_token}"
            )
        if self.encoder.biases_distances:
            raise ValueError(
                "sentence_token leaves gaps in the positions of a candidate's rows; biases of distances take none"
            )
        if self.pattern.shares_queries:
            raise ValueError("sentence_token needs a pattern in which queries attend to [CLS] or to candidates")


class CrossEncoder(JointScorer):
    """Scores a candidate by the last [CLS] state of the sequence of query and candidate."""

    architecture: ClassVar[str] = "cross_encoder"
    config_class: ClassVar[type] = CrossEncoderConfig

    def __init__(self, config: CrossEncoderConfig) -> None:
        super().__init__(config, (config.sep_id,) * config.query_separators)
        self.config: CrossEncoderConfig = config
        self.token_types = config.token_types and config.encoder.num_token_types > 1
        self.attention, self.shares_queries = config.pattern, config.pattern.shares_queries
        self.candidate_template = replace(self.candidate_template, sentence_token=config.sentence_token)
        self.lexical = Lexical(config.lexical, config.encoder.vocab_size) if config.lexical is not None else None

    def prepare_for(self, execution: Execution) -> None:
        """Prepares the last layer, of which [CLS] alone is read."""
        if execution.graphs and not self.config.pattern.is_full:
            self.encoder.layer(-1).fold()

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        """The facts of any scorer that reads query and candidate together, and the pattern."""
        return super().facts(query_text_of, text_of) | {"pattern": self.config.pattern.summary}

    def score_packed(self, batch: ScoreBatch, run: Callable[[PackedTokens], Tensor]) -> Tensor:
        return self._with_evidence(super().score_packed(batch, run), batch)

    def score_passages(self, batch: ScoreBatch, run: Callable[[PackedTokens], Tensor]) -> tuple[Tensor, Tensor]:
        scores, best = super().score_passages(batch, run)
        return self._with_evidence(scores, batch), best

    def _packed(self, batch: ScoreBatch) -> PackedTokens:
        return pack(batch, self.config.pattern, cls_id=self.config.cls_id, sentence_token=self.config.sentence_token)

    @property
    def lexical_evidence(self) -> Lexical | None:
        return self.lexical

    def _with_evidence(self, scores: Tensor, batch: ScoreBatch) -> Tensor:
        """Adds lexical evidence to the scores, if the scorer has any."""
        return scores if self.lexical is None else scores + self.lexical(batch)

    def launch(self, packed: PackedTokens, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of a packed batch, launched kernel by kernel.

        cls_only: whether the last layer runs for [CLS] alone, which changes scores by no more than rounding.
        """
        plan = self.plan(packed.rows)
        return self.compute(PackedInputs.of(packed, plan, self.encoder.device), cls_only=cls_only)

    def buckets(self) -> PackedBuckets:
        """The buckets of packed batches, for CUDA graphs."""
        return PackedBuckets(self.compute, self.plan, shares_queries=self.shares_queries)

    @property
    def why_not_captured(self) -> str | None:
        """Why CUDA graphs cannot replay its launches, as a clause; None if they can."""
        config = self.config.encoder
        if self.config.pattern.is_full:  # FlashAttention has no last layer of its own
            return None
        return why_not_one_launch(num_heads=config.num_heads, hidden_size=config.hidden_size, dtype=self.encoder.dtype)

    def plan(self, rows: PackedRows, capacity: Capacity | None = None) -> AttentionPlan:
        """The plan of a packed batch, as from `Encoder.plan`."""
        return self.encoder.plan(rows, self.config.pattern, capacity)

    def compute(self, inputs: PackedInputs, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of packed rows; only launches kernels, and never makes the host wait."""
        ids, positions, types = inputs.numbers
        embed = partial(self.encoder.embed, ids, positions, types if self.token_types else torch.zeros_like(types))
        if cls_only:  # the embeddings have no name, so that they do not stay in memory
            cls = self.encoder.forward_cls(embed(), positions, inputs.plan, inputs.num_candidates)
        else:
            cls = self.encoder(embed(), positions, inputs.plan)[: inputs.num_candidates]
        return self.head(cls)  # type: ignore[no-any-return]
