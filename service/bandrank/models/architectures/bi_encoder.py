"""Bi-encoders: query and candidate are encoded separately and compared as vectors (Reimers & Gurevych 2019)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bandrank.models.architectures.two_towers import LateInteractionScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.dense import Dense, DenseConfig
from bandrank.models.layers.pooling import Pooling, pool_by_owner
from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import LIGHT_ROWS, CandidateSide, Scorer
from bandrank.models.template import TextOf
from bandrank.models.text_buckets import TextBuckets, TextInputs
from bandrank.models.wording import PLAIN, Wording
from bandrank_kernels.transfer import to_device

Similarity = Literal["cosine", "dot"]


@dataclass(frozen=True)
class BiEncoderConfig:
    """The settings of a bi-encoder, saved in config.json.

    cls_id, sep_id: the tokens around each text; None for a missing one.
    joined: further poolings, whose vectors are put behind the first one's.
    max_tokens: the most token ids of a query or candidate, [CLS] and [SEP] included.
    dense: layers behind the pooling, in their order.
    size: how many numbers of a vector are kept, from the first (Kusupati et al. 2022, arXiv 2205.13147); None for all.
    query_wording: the words around a query.  candidate_wording: the words before a candidate.
    score_scale, score_bias: as in LateInteractionConfig.
    separate_towers: whether candidates have a second encoder of the same shape.
    of_queries: the settings of the bi-encoder that reads queries, if that is another; its vectors are compared alike.
    Raises ValueError for limits out of range, and for vectors that cannot be compared.
    """

    encoder: EncoderConfig
    cls_id: int | None
    sep_id: int | None
    pooling: Pooling = "mean"
    joined: tuple[Pooling, ...] = ()
    similarity: Similarity = "cosine"
    max_tokens: int = 256
    dense: tuple[DenseConfig, ...] = ()
    size: int | None = None
    query_wording: Wording = PLAIN
    candidate_wording: Wording = PLAIN
    score_scale: float = 1.0
    score_bias: float = 0.0
    separate_towers: bool = False
    of_queries: "BiEncoderConfig | None" = None

    def __post_init__(self) -> None:
        if not 2 <= self.max_tokens <= self.encoder.max_positions:
            raise ValueError(f"max_tokens must be within 2..{self.encoder.max_positions}, got {self.max_tokens}")
        if not self.score_scale > 0:
            raise ValueError(f"score_scale must be above 0, got {self.score_scale}")
        if self.size is not None and not 1 <= self.size <= self.sizes[-1]:
            raise ValueError(f"size must be within 1..{self.sizes[-1]}, got {self.size}")
        if self.of_queries is not None and (asked := self.of_queries.compared) != self.compared:
            raise ValueError(f"vectors of queries ({asked}) and of candidates ({self.compared}) cannot be compared")

    @property
    def compared(self) -> str:
        """Which vectors are compared, and how, in a few words."""
        return f"{self.size or self.sizes[-1]} numbers, {self.similarity}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of a vector as it is pooled, and behind each dense layer."""
        return len(self.poolings) * self.encoder.hidden_size, *(layer.size for layer in self.dense)

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """All poolings, in the order of their vectors."""
        return self.pooling, *self.joined

    @property
    def max_query_tokens(self) -> int:
        """The limit that queries and candidates share."""
        return self.max_tokens

    max_candidate_tokens = max_query_tokens


class BiEncoder(LateInteractionScorer):
    """Scores a candidate by the cosine or dot product of its vector with the query's."""

    architecture: ClassVar[str] = "bi_encoder"
    embeds: ClassVar[bool] = True
    config_class: ClassVar[type] = BiEncoderConfig
    config: BiEncoderConfig
    packed_parts: ClassVar[tuple[str, ...]] = (*LateInteractionScorer.packed_parts, "of_queries.encoder.layers")
    why_similarity: str = ""  # the reason for it, to report; empty if it was saved with the config

    def __init__(self, config: BiEncoderConfig) -> None:
        super().__init__(config)
        self.of_queries = None if config.of_queries is None else BiEncoder(config.of_queries)
        worded = replace(self.query_template, wording=config.query_wording)
        self.query_template = worded if self.of_queries is None else self.of_queries.query_template
        self.candidate_template = replace(self.candidate_template, wording=config.candidate_wording)
        self.dense = nn.Sequential(*map(Dense, config.dense, config.sizes[:-1]))
        self.representation_size = config.size or config.sizes[-1]

    def cut(self, size: int) -> None:
        """Keeps the first `size` numbers of each vector, or all if there are no more."""
        self.representation_size = min(size, self.config.sizes[-1])
        of_queries = None
        if self.of_queries is not None:
            self.of_queries.cut(size)
            of_queries = self.of_queries.config
        self.config = replace(self.config, size=self.representation_size, of_queries=of_queries)

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        """The facts of any scorer, and how texts become vectors."""
        why = f": {self.why_similarity}" if self.why_similarity else ""
        cut = f", cut to {self.config.size} numbers" if self.config.size else ""
        compared = f"compared by {self.config.similarity}{why}"
        facts = super().facts(query_text_of, text_of)
        facts["pooling"] = f"{' and '.join(self.config.poolings)}{cut}, {compared}"
        if self.of_queries is not None:
            asked = self.of_queries.config
            facts["query encoder"] = f"{asked.encoder.summary}, pooled by {' and '.join(asked.poolings)}"
        return facts

    @property
    def sides(self) -> tuple[Scorer, ...]:
        return (self,) if self.of_queries is None else (self, self.of_queries)

    @property
    def encodes_queries_apart(self) -> bool:
        return super().encodes_queries_apart or self.of_queries is not None

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """A dot product costs next to nothing."""
        del query_tokens, candidate_rows
        return LIGHT_ROWS

    def query_rows(self, query_tokens: int) -> float:
        """The query's tokens, at the cost of its own encoder."""
        return query_tokens * self.sides[-1].row_cost / self.row_cost

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """One vector for each candidate, (n, representation_size), of unit length if the similarity is the cosine."""
        return self._vectors(self.candidate_encoder or self.encoder, tokens)

    def candidate_side(self) -> CandidateSide:
        """All but what reads queries, and the calibration of scores."""
        of_vectors = ("encoder", "pooling", "joined", "dense", "size", "similarity")
        names = (*of_vectors, "cls_id", "sep_id", "max_tokens", "candidate_wording")
        return self._candidate_side(names, (self.candidate_prefix, "dense."))

    def encode_queries(self, queries: Ragged) -> Ragged:
        """One vector for each query."""
        if self.of_queries is not None:
            return self.of_queries.encode_queries(queries)
        return self._vectors(self.encoder, queries)

    def encode_packed(self, tokens: Ragged, run: Callable[[Ragged], Tensor]) -> Ragged:
        """(n, representation_size) vectors of candidates or queries, from `run`: `launch`, or the replay of a graph."""
        return Ragged(run(tokens), np.arange(len(tokens) + 1))

    def score_packed(self, batch: ScoreBatch, run: Callable[[Ragged], Tensor]) -> Tensor:
        """Like `score`, with `run` computing the vectors of queries. Stored vectors go over in one transfer that is not
        waited for.
        """
        candidates = batch.candidates
        if len(candidates) == 0:
            return self.score(batch)
        if candidates.values.device.type == "cpu":
            candidates = replace(candidates, values=to_device([candidates.values], self.encoder.device)[0])
        return self.scores_for(self.encode_packed(batch.queries, run), replace(batch, candidates=candidates))

    def launch(self, packed: Ragged) -> Tensor:
        """(n, representation_size) vectors of texts, launched kernel by kernel."""
        return self.encode_queries(packed).values

    launch_texts = launch

    def buckets(self) -> TextBuckets:
        """The buckets of texts, for CUDA graphs."""
        return TextBuckets(self.compute_texts, self.encoder)

    @property
    def why_not_captured(self) -> str | None:
        """Why CUDA graphs cannot replay its launches, as a clause; None if they can."""
        return "it has two encoders" if self.encodes_queries_apart else super().why_not_captured

    def compute_texts(self, inputs: TextInputs) -> Tensor:
        """(num_texts, representation_size) vectors of a bucket; never makes the host wait."""
        ids, positions, owner = inputs.numbers
        hidden = self.encoder.embed(ids, positions, torch.zeros_like(ids))
        states = self.encoder(hidden, positions, inputs.plan)
        lengths = owner.new_zeros(inputs.num_texts + 1).index_add_(0, owner, torch.ones_like(owner))
        pooled = [pool_by_owner(states, owner, positions, lengths, each)[:-1] for each in self.config.poolings]
        return self._behind_pooling(torch.cat(pooled, -1))

    def _vectors(self, encoder: Encoder, tokens: Ragged) -> Ragged:
        vectors = self._behind_pooling(tower.read_pooled(encoder, tokens, *self.config.poolings))
        return Ragged(vectors, np.arange(len(tokens) + 1))

    def _behind_pooling(self, pooled: Tensor) -> Tensor:
        vectors = self.dense(pooled)[:, : self.config.size]
        return normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        vectors = candidates.values.to(query)
        if query.device.type == "cpu":  # row by row: the rounding of a matrix-vector product depends on all rows
            return (vectors * query[0]).sum(-1)
        with in_float32(query.device):
            return vectors @ query[0]
