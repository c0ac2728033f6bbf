"""The common part of scorers that encode query and candidate separately, with one encoder or two."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import build_encoder
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import LIGHT_ROWS, Scorer
from bandrank.models.template import TextOf, TokenTemplate


@dataclass(frozen=True, kw_only=True)
class TwoTowerConfig:
    """The fields that these scorers have in common.

    max_query_tokens, max_candidate_tokens: the most token ids of a text, special tokens included.
    Raises ValueError for a limit below `least_tokens` or above the encoder's positions.
    """

    least_tokens: ClassVar[int] = 2
    encoder: EncoderConfig
    cls_id: int
    sep_id: int | None
    max_query_tokens: int = 128
    max_candidate_tokens: int = 256

    def __post_init__(self) -> None:
        least, most = self.least_tokens, self.encoder.max_positions
        for name in ("max_query_tokens", "max_candidate_tokens"):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be within {least}..{most}, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class LateInteractionConfig(TwoTowerConfig):
    """The fields of scorers whose similarity is not a logit.

    score_scale, score_bias: a score is scale * similarity + bias; `export --tune` sets both, so that the sigmoid of a
    score is a probability. Raises ValueError for a scale that is not above 0, which would reverse rankings.
    """

    score_scale: float = 1.0
    score_bias: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.score_scale > 0:
            raise ValueError(f"score_scale must be above 0, got {self.score_scale}")


class TwoTowerScorer(Scorer):
    """Encodes candidates before the query is known; by default a text is [CLS], word pieces and [SEP]."""

    precomputes: ClassVar[bool] = True

    def __init__(self, config: Any, *, encoder: EncoderConfig | None = None) -> None:
        """encoder: the config of the encoder, where it differs from `config.encoder`."""
        super().__init__()
        self.config = config
        before, after = (() if token is None else (token,) for token in (config.cls_id, config.sep_id))
        self.query_template = TokenTemplate(before, after, config.max_query_tokens)
        self.candidate_template = TokenTemplate(before, after, config.max_candidate_tokens)
        self.representation_size = config.encoder.hidden_size
        self.encoder = build_encoder(encoder or config.encoder)

    @property
    def why_not_captured(self) -> str | None:
        """Why CUDA graphs cannot replay what its encoder launches, as a clause; None if they can."""
        return None if self.encoder.windows == [None] else "its encoder has local layers"

    def rows_worth(self, products: float) -> float:
        """The cost of a candidate whose interaction takes this many multiplications, in rows of the encoder."""
        encoder: EncoderConfig = self.config.encoder
        return LIGHT_ROWS + products / (encoder.num_layers * encoder.products_per_layer)

    def score(self, batch: ScoreBatch) -> Tensor:
        if len(batch.candidates) == 0:
            return torch.empty(0, device=self.encoder.device)
        return self.score_some(batch)

    @abstractmethod
    def score_some(self, batch: ScoreBatch) -> Tensor:
        """`score`, for a batch with at least one candidate."""


class LateInteractionScorer(TwoTowerScorer):
    """Compares each query with its own candidates, one query after the other.

    candidate_encoder: an encoder for candidates alone, if the config has `separate_towers`.
    """

    packed_parts: ClassVar[tuple[str, ...]] = ("encoder.layers", "candidate_encoder.layers")

    def __init__(self, config: Any, *, encoder: EncoderConfig | None = None) -> None:
        super().__init__(config, encoder=encoder)
        separate = getattr(config, "separate_towers", False)
        self.candidate_encoder: Encoder | None = build_encoder(config.encoder) if separate else None

    def initialise(self, encoder: Encoder) -> Self:
        """Copies the encoder into both towers."""
        super().initialise(encoder)
        if self.candidate_encoder is not None:
            self.candidate_encoder.load_state_dict(encoder.state_dict())
        return self

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        two = {"encoders": "two, for queries and for candidates, each with all weights"}
        return super().facts(query_text_of, text_of) | (two if self.candidate_encoder is not None else {})

    @property
    def encodes_queries_apart(self) -> bool:
        return self.candidate_encoder is not None

    @property
    def candidate_prefix(self) -> str:
        """The start of the names of weights that encode candidates."""
        return "encoder." if self.candidate_encoder is None else "candidate_encoder."

    def score_some(self, batch: ScoreBatch) -> Tensor:
        return self.scores_for(self.encode_queries(batch.queries), batch)

    def scores_for(self, queries: Ragged, batch: ScoreBatch) -> Tensor:
        """`score`, from what `encode_queries` gives for the batch, which has at least one candidate."""
        similarities = torch.cat(
            [self.compare(queries[query], batch.candidates.part(group)) for query, group in batch.groups()]
        )
        return similarities.mul(self.config.score_scale).add(self.config.score_bias)

    def encode_queries(self, queries: Ragged) -> Ragged:
        """The rows of each query that are compared; by default the last states of its tokens."""
        return tower.read(self.encoder, queries)

    @abstractmethod
    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        """(n,) float32 similarities of n candidates to one query.

        query: the query's rows from `encode_queries`.  candidates: n representations, of any float dtype.
        """
