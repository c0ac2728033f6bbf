"""What scorers share that read query and candidate apart, with one encoder or two."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import build_encoder
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import LIGHT_ROWS, Scorer, TokenTemplate


@dataclass(frozen=True, kw_only=True)
class TwoTowerConfig:
    """The part that all of these scorers save beside their weights.

    max_query_tokens, max_candidate_tokens: token ids of a text, special tokens included.
    Raises ValueError for a limit below `least_tokens` or above the encoder's positions.
    """

    least_tokens: ClassVar[int] = 2
    encoder: EncoderConfig
    cls_id: int
    sep_id: int
    max_query_tokens: int = 128
    max_candidate_tokens: int = 256

    def __post_init__(self) -> None:
        least, most = self.least_tokens, self.encoder.max_positions
        for name in ("max_query_tokens", "max_candidate_tokens"):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be within {least}..{most}, got {getattr(self, name)}")


class TwoTowerScorer(Scorer):
    """Encodes candidates before the query is known; a text is [CLS], its word pieces and [SEP]."""

    precomputes: ClassVar[bool] = True

    def __init__(self, config: Any, *, tower: EncoderConfig | None = None) -> None:
        """tower: the encoder that is built, if it is not all of the config's."""
        super().__init__()
        self.config = config
        self.query_template = TokenTemplate((config.cls_id,), (config.sep_id,), config.max_query_tokens)
        self.candidate_template = TokenTemplate((config.cls_id,), (config.sep_id,), config.max_candidate_tokens)
        self.representation_size = config.encoder.hidden_size
        self.encoder = build_encoder(tower or config.encoder)

    def rows_worth(self, products: float) -> float:
        """What a candidate costs whose interaction takes so many multiplications, in rows of the encoder."""
        encoder: EncoderConfig = self.config.encoder
        return LIGHT_ROWS + products / (encoder.num_layers * encoder.products_per_layer)

    def score(self, batch: ScoreBatch) -> Tensor:
        if len(batch.candidates) == 0:
            return torch.empty(0, device=self.encoder.device)
        return self.score_some(batch)

    @abstractmethod
    def score_some(self, batch: ScoreBatch) -> Tensor:
        """`score` of a batch that has candidates."""


class LateInteractionScorer(TwoTowerScorer):
    """Compares the states of a query with those of its candidates, one query after the other."""

    def score_some(self, batch: ScoreBatch) -> Tensor:
        queries = self.encode_queries(batch.queries)
        return torch.cat(
            [self.compare(queries[query], batch.candidates.part(group)) for query, group in batch.groups()]
        )

    def encode_queries(self, queries: Ragged) -> Ragged:
        """What is compared of each query; by default the last states of its tokens."""
        return tower.read(self.encoder, queries)

    @abstractmethod
    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        """(n,) float32 scores of n candidates. query: of `encode_queries`.  candidates: their representations."""
