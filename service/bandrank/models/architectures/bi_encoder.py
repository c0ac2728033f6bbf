"""Bi-encoders: query and candidate read apart, compared as vectors (Reimers & Gurevych 2019)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.encoder import Encoder, EncoderConfig
from bandrank.models.layers.patterns import sparse
from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.ragged import Ragged, offsets
from bandrank.models.scorer import Scorer, TokenTemplate
from bandrank_kernels.windowed_attention import PackedRows, plan_attention


@dataclass(frozen=True)
class BiEncoderConfig:
    """What a bi-encoder is, saved beside its weights. max_tokens: [CLS], text and [SEP], on either side."""

    encoder: EncoderConfig
    cls_id: int
    sep_id: int
    pooling: Pooling = "mean"
    similarity: Literal["cosine", "dot"] = "cosine"
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not 2 <= self.max_tokens <= self.encoder.max_positions:
            raise ValueError(f"max_tokens must be within 2..{self.encoder.max_positions}, got {self.max_tokens}")


class BiEncoder(Scorer):
    """Scores a candidate by the cosine or dot product of its vector with the query's."""

    architecture: ClassVar[str] = "bi_encoder"
    precomputes: ClassVar[bool] = True
    config_class: ClassVar[type] = BiEncoderConfig

    def __init__(self, config: BiEncoderConfig) -> None:
        super().__init__()
        self.config: BiEncoderConfig = config
        template = TokenTemplate((config.cls_id,), (config.sep_id,), config.max_tokens)
        self.query_template = self.candidate_template = template
        self.encoder = Encoder(config.encoder)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """One float32 vector each."""
        return Ragged(self._encode(tokens), np.arange(len(tokens) + 1))

    def score(self, batch: ScoreBatch) -> Tensor:
        queries = self._encode(batch.queries)
        owner = torch.from_numpy(batch.candidate_query).to(queries.device)
        return (queries[owner] * batch.candidates.values.to(queries.device)).sum(-1)

    def _encode(self, tokens: Ragged) -> Tensor:
        """(n, hidden_size) float32, of unit length if the similarity is the cosine."""
        device = self.device
        # Sequences without candidates: rows that attend to all rows of their own sequence.
        rows = PackedRows(tokens.cu_seqlens, offsets([]), np.zeros(0, np.int64))
        ids = tokens.values.to(device, non_blocking=True)
        starts = np.repeat(tokens.cu_seqlens[:-1], tokens.lengths)
        positions = torch.from_numpy(np.arange(len(tokens.values)) - starts).to(device, non_blocking=True)
        hidden = self.encoder.embeddings(ids, positions, torch.zeros_like(ids))
        plan = plan_attention(rows, sparse(window=None), device=device, dtype=hidden.dtype)
        vectors = pool(Ragged(self.encoder(hidden, plan), tokens.cu_seqlens), self.config.pooling)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors
