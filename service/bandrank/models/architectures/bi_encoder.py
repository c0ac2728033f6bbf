"""Bi-encoders: query and candidate read apart, compared as vectors (Reimers & Gurevych 2019)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import EncoderConfig, build_encoder, tower
from bandrank.models.layers.pooling import Pooling, pool
from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import LIGHT_ROWS, Scorer, TokenTemplate


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
        self.representation_size = config.encoder.hidden_size
        self.encoder = build_encoder(config.encoder)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """A dot product is next to nothing."""
        del query_tokens, candidate_rows
        return LIGHT_ROWS

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """One vector each."""
        return Ragged(self._encode(tokens), np.arange(len(tokens) + 1))

    def score(self, batch: ScoreBatch) -> Tensor:
        queries = self._encode(batch.queries)
        vectors = batch.candidates.values.to(queries)
        with in_float32(queries.device):
            scores = [vectors[own] @ queries[query] for query, own in batch.groups()]
        return torch.cat(scores) if scores else queries.new_empty(0)

    def _encode(self, tokens: Ragged) -> Tensor:
        """(n, hidden_size) float32, of unit length if the similarity is the cosine."""
        vectors = pool(tower.read(self.encoder, tokens), self.config.pooling)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors
