"""SPLADE: texts become a few weighted terms of the vocabulary (Formal et al. 2021, arXiv 2107.05720; its maxima: arXiv
2109.10086).

A query's terms may also be its own tokens, each with a weight from a table, so that no encoder reads it (Geng et al.
2024, arXiv 2411.04403).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bandrank.models.architectures.two_towers import LateInteractionConfig, LateInteractionScorer
from bandrank.models.encoders import tower
from bandrank.models.layers.head import DenseNorm
from bandrank.models.layers.linear import Linear
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import MINILM_PRODUCTS, CandidateSide
from bandrank.models.template import TextOf, TokenTemplate
from bandrank.models.wording import PLAIN, Wording
from bandrank_kernels.transfer import to_device

BLOCK_ROWS = 128  # tokens whose logits are computed together: 16 MB for a vocabulary of 30,000


@dataclass(frozen=True, kw_only=True)
class SpladeConfig(LateInteractionConfig):
    """The settings of a SPLADE, saved in config.json.

    pooling: whether the weights that a text's tokens give a term are summed, or the largest counts.
    num_logs: how many times log(1 + x) is taken of a positive logit; 2 in Shen et al. 2025 (arXiv 2504.14839).
    most_terms: how many terms of a text have a weight at most, the largest ones; None for any number.
    query_table: whether queries are read without the encoder, by a table of weights.
    query_wording: the words around a query.  candidate_wording: the words before a candidate.
    Raises ValueError for a num_logs or most_terms below 1.
    """

    pooling: Literal["max", "sum"] = "max"
    num_logs: int = 1
    most_terms: int | None = None
    query_table: bool = False
    query_wording: Wording = PLAIN
    candidate_wording: Wording = PLAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_logs < 1:
            raise ValueError(f"num_logs must be at least 1, got {self.num_logs}")
        if self.most_terms is not None and self.most_terms < 1:
            raise ValueError(f"most_terms must be at least 1, got {self.most_terms}")


class Splade(LateInteractionScorer):
    """Scores a candidate by the dot product of its terms' weights with the query's."""

    architecture: ClassVar[str] = "splade"
    config_class: ClassVar[type] = SpladeConfig
    config: SpladeConfig
    packed_parts: ClassVar[tuple[str, ...]] = ("encoder.layers", "decoder")  # which costs as much as six layers of 384

    def __init__(self, config: SpladeConfig) -> None:
        super().__init__(config)
        bare = TokenTemplate((), (), config.max_query_tokens)
        template = bare if config.query_table else self.query_template
        self.query_template = replace(template, wording=config.query_wording)
        self.candidate_template = replace(self.candidate_template, wording=config.candidate_wording)
        self.num_terms = config.encoder.vocab_size
        self.representation_size = 2  # a term's id, and its weight
        self.head = DenseNorm(config.encoder)
        self.decoder = Linear(config.encoder.hidden_size, self.num_terms)
        if config.query_table:
            self.query_weights = nn.Parameter(torch.zeros(self.num_terms))

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        """The facts of any scorer, and how texts become terms."""
        logs = "log(1 + " * self.config.num_logs + "logit" + ")" * self.config.num_logs
        how = {"max": "the largest", "sum": "the sum of"}[self.config.pooling]
        most = f", the {self.config.most_terms:,} largest of a text" if self.config.most_terms else ""
        queries = "; a query's by a table, without the encoder" if self.config.query_table else ""
        terms = f"{self.num_terms:,}, weighted by {how} {logs}{most}{queries}"
        return super().facts(query_text_of, text_of) | {"terms": terms}

    @property
    def encodes_queries_apart(self) -> bool:
        return self.config.query_table

    @property
    def row_cost(self) -> float:
        """The cost of a row, with the logits of all terms."""
        size = self.config.encoder.hidden_size
        return super().row_cost + size * (size + self.num_terms) / MINILM_PRODUCTS

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """A product for each term costs next to nothing."""
        del query_tokens
        return self.rows_worth(candidate_rows)

    def query_rows(self, query_tokens: int) -> float:
        """The query's tokens, unless a table reads them."""
        return 0.0 if self.config.query_table else query_tokens

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(total, 2) the terms of each candidate whose weight is not 0, in the order of their ids: id and weight."""
        if not len(tokens):
            return Ragged(torch.empty(0, 2, device=self.encoder.device), tokens.cu_seqlens)
        return Ragged.from_tensors([sparse(weights) for weights in self._weights(tokens)])

    def candidate_side(self) -> CandidateSide:
        return self._candidate_side(("encoder", "pooling", "num_logs", "most_terms"), ("encoder.", "head.", "decoder."))

    def encode_queries(self, queries: Ragged) -> Ragged:
        """(n, num_terms) one row for each query, with the weight of every term."""
        weights = self._looked_up(queries) if self.config.query_table else torch.stack([*self._weights(queries)])
        return Ragged(weights, np.arange(len(queries) + 1))

    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        terms, weights = candidates.values.to(query).unbind(1)
        owner = torch.from_numpy(np.repeat(np.arange(len(candidates)), candidates.lengths)).to(query.device)
        sums = torch.zeros(len(candidates), dtype=torch.float64, device=query.device)
        # Sums in float64 do not depend on their order once rounded.
        return sums.index_add_(0, owner, query[0][terms.long()].double() * weights.double()).float()

    def _looked_up(self, queries: Ragged) -> Tensor:
        """(n, num_terms) the table's weights of the tokens that each query has, however often."""
        owner = torch.from_numpy(np.repeat(np.arange(len(queries)), queries.lengths))
        owner, ids = to_device([owner, queries.values], self.encoder.device)
        weights = self.query_weights.new_zeros(len(queries), self.num_terms)
        weights[owner, ids] = self.query_weights[ids]
        return self._largest(weights)

    def _weights(self, tokens: Ragged) -> Iterator[Tensor]:
        """(num_terms,) float32 weights of all terms in each text."""
        states = tower.read(self.encoder, tokens)
        # Text by text: the rounding of a product with a matrix may depend on the number of rows.
        return (self._largest(self._pool(states[text])) for text in range(len(tokens)))

    def _largest(self, weights: Tensor) -> Tensor:
        """The weights, of which no text has more than `most_terms` that are not 0. weights: (..., num_terms)."""
        if (most := self.config.most_terms) is None:
            return weights
        terms = weights.abs().topk(min(most, self.num_terms)).indices
        return torch.zeros_like(weights).scatter(-1, terms, weights.gather(-1, terms))

    def _pool(self, states: Tensor) -> Tensor:
        """(num_terms,) the weights of all terms in a text. states: (length, hidden_size) of its tokens."""
        logits = (self.decoder(self.head(rows).to(states.dtype)).float() for rows in torch.split(states, BLOCK_ROWS))
        if self.config.pooling == "sum":
            return reduce(torch.add, (self._damped(each).sum(0) for each in logits))
        return self._damped(reduce(torch.maximum, (each.amax(0) for each in logits)))

    def _damped(self, logits: Tensor) -> Tensor:
        return reduce(lambda x, _: x.log1p(), range(self.config.num_logs), logits.relu())


def sparse(weights: Tensor) -> Tensor:
    """(n, 2) ids and weights of the terms whose weight is not 0. weights: (num_terms,)."""
    terms = weights.nonzero()[:, 0]
    return torch.stack([terms.float(), weights[terms]], 1)
