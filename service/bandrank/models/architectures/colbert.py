"""ColBERT: texts become one small vector per token, and are compared by MaxSim (Khattab & Zaharia 2020; version 2:
Santhanam et al. 2022).

The defaults are those of version 2. The MixEncoder paper's baseline of this name is `query_marker=None,
candidate_marker=None, augment=False, floor=True`: no markers, no [MASK] rows, and no match below 0.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bandrank.models.architectures.two_towers import LateInteractionConfig, LateInteractionScorer
from bandrank.models.encoders import tower
from bandrank.models.layers.dense import Dense, DenseConfig
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.maxsim import maxsim
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import CandidateSide
from bandrank.models.wording import PLAIN, Wording
from bandrank_kernels.arrays import offsets


@dataclass(frozen=True, kw_only=True)
class ColBERTConfig(LateInteractionConfig):
    """The settings of a ColBERT, saved in config.json.

    query_marker, candidate_marker: token ids behind [CLS], or None.  query_wording: the words around a query.
    candidate_wording: the words before a candidate.  skipped_ids: candidate tokens without a vector.
    dense: the layers from a state to its vector of `dim` numbers; none: a product without a bias.
    augment: whether a query is filled up to max_query_tokens with [MASK]; these rows attend to the query and take part
    in MaxSim.  attend_to_masks: whether other rows attend to them.
    similarity: "l2" is the negative squared distance.  floor: whether matches below 0 count as 0, as if each candidate
    had a row of zeros.
    Raises ValueError for limits below 3, for layers that end in other than `dim` numbers, or for a floor with another
    similarity than the cosine.
    """

    least_tokens: ClassVar[int] = 3  # [CLS], marker and [SEP]
    mask_id: int
    query_marker: int | None
    candidate_marker: int | None
    query_wording: Wording = PLAIN
    candidate_wording: Wording = PLAIN
    skipped_ids: tuple[int, ...] = ()
    dim: int = 128
    dense: tuple[DenseConfig, ...] = ()
    similarity: Literal["cosine", "l2"] = "cosine"
    augment: bool = True
    attend_to_masks: bool = False
    floor: bool = False
    max_query_tokens: int = 32
    max_candidate_tokens: int = 220

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dense and self.dense[-1].size != self.dim:
            raise ValueError(f"the dense layers end in {self.dense[-1].size} numbers, not in {self.dim}")
        if self.floor and self.similarity != "cosine":
            raise ValueError(f"floor needs similarity 'cosine', got {self.similarity!r}")


class ColBERT(LateInteractionScorer):
    """Scores a candidate by the sum, over the query's rows, of the best match among the candidate's rows."""

    architecture: ClassVar[str] = "colbert"
    config_class: ClassVar[type] = ColBERTConfig
    config: ColBERTConfig

    def __init__(self, config: ColBERTConfig) -> None:
        super().__init__(config)
        if config.augment and not config.attend_to_masks and not config.encoder.masks_keys:
            raise ValueError(
                "causal attention and DeBERTa cannot mask [MASK] rows as keys; attend_to_masks needs no masks"
            )
        self.query_template = replace(self.query_template, wording=config.query_wording)
        self.candidate_template = replace(self.candidate_template, wording=config.candidate_wording)
        if config.query_marker is not None:
            self.query_template = replace(self.query_template, prefix=(config.cls_id, config.query_marker))
        if config.candidate_marker is not None:
            self.candidate_template = replace(self.candidate_template, prefix=(config.cls_id, config.candidate_marker))
        self.representation_size = config.dim
        sizes = config.encoder.hidden_size, *(layer.size for layer in config.dense)
        if config.dense:
            self.dense = nn.Sequential(*map(Dense, config.dense, sizes))
        else:
            self.projection = Linear(config.encoder.hidden_size, config.dim, bias=False)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The products of MaxSim, as a fraction of a row's products in the encoder."""
        return self.rows_worth(self.query_rows(query_tokens) * candidate_rows * self.config.dim)

    def query_rows(self, query_tokens: int) -> float:
        """The rows of the query, including the [MASK] tokens that fill it up, if it is augmented."""
        return self.config.max_query_tokens if self.config.augment else query_tokens

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """(total, dim) a vector of unit length for each token that is not skipped."""
        states = tower.read(self.encoder, tokens)
        kept = ~np.isin(tokens.values.numpy(), self.config.skipped_ids)
        cu_seqlens = offsets(kept.astype(np.int64))[tokens.cu_seqlens]
        rows = states.values[torch.from_numpy(kept).to(states.values.device)]
        return Ragged(self._project(rows), cu_seqlens)

    def candidate_side(self) -> CandidateSide:
        return self._candidate_side(("encoder", "skipped_ids", "dim", "dense"), ("encoder.", "projection.", "dense."))

    def compare(self, query: Tensor, candidates: Ragged) -> Tensor:
        best = maxsim(query, candidates)
        if self.config.floor:
            best = best.clamp(min=0)
        if self.config.similarity == "l2":
            best = 2 * best - 2  # minus the squared distance of vectors of unit length
        return best.sum(-1)

    def encode_queries(self, queries: Ragged) -> Ragged:
        """(total, dim) a vector for each row of a query, [MASK] rows included."""
        if not self.config.augment:
            states = tower.read(self.encoder, queries)
            return Ragged(self._project(states.values), queries.cu_seqlens)
        width = self.config.max_query_tokens
        real = np.arange(width) < queries.lengths[:, None]
        ids = np.full(real.shape, self.config.mask_id)
        ids[real] = queries.values.numpy()
        augmented = Ragged(torch.from_numpy(ids).flatten(), width * np.arange(len(queries) + 1))
        if self.config.attend_to_masks:
            return Ragged(self._project(tower.read(self.encoder, augmented).values), augmented.cu_seqlens)
        plan = self.encoder.plan_masked(torch.from_numpy(real).to(self.encoder.device))
        hidden = self.encoder(*tower.embed(self.encoder, augmented), plan)
        return Ragged(self._project(hidden), augmented.cu_seqlens)

    def _project(self, states: Tensor) -> Tensor:
        """(total, dim) float32, of unit length. states: (total, hidden_size)."""
        project = self.dense if self.config.dense else self.projection
        return normalize(project(states).float(), dim=-1)
