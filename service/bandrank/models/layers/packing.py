"""The rows of a cross-encoder's batch: [CLS of every candidate | each query once | candidates]."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank_kernels.arrays import Ints, indices_within, offsets, ranges
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows


@dataclass(frozen=True)
class PackedTokens:
    """The inputs of a cross-encoder in host memory.

    ids, positions, token_types: (num_rows,).  rows: the layout of the rows.
    """

    ids: Ints
    positions: Ints
    token_types: Ints
    rows: PackedRows

    @property
    def of_rows(self) -> tuple[Ints, Ints, Ints]:
        """The three arrays with a number for each row."""
        return self.ids, self.positions, self.token_types


@dataclass(frozen=True)
class PackedInputs:
    """The inputs of a cross-encoder on the device, with the plan of their attention.

    ids, positions, token_types: (num_rows,) int64.  num_candidates: the number of [CLS] rows, which come first. Both
    counts include unused rows and candidates of a bucket.
    """

    ids: Tensor
    positions: Tensor
    token_types: Tensor
    plan: AttentionPlan
    num_candidates: int

    @classmethod
    def of(cls, packed: PackedTokens, plan: AttentionPlan, device: torch.device) -> "PackedInputs":
        """Copies tokens and plan tables to the device in one transfer."""
        host = [*map(torch.from_numpy, packed.of_rows), *plan.host_tables]
        ids, positions, token_types, *tables = to_device(host, device)
        return cls(ids, positions, token_types, plan.bind(tables), packed.rows.num_candidates)


def pack(batch: ScoreBatch, pattern: AttentionPattern, *, cls_id: int, sentence_token: int | None) -> PackedTokens:
    """Packs a batch with BERT's positions and token types: [CLS] at 0, the query from 1, the candidate behind it with
    token type 1.

    If the pattern makes a query's states depend on the candidate, each candidate gets a copy of its query. Sentence
    tokens of candidates then move to the rows of that copy, with their positions and types (QDS-Transformer).
    """
    owner = batch.candidate_query
    query_ids, query_lengths = batch.queries.values.numpy(), batch.queries.lengths
    candidate_ids, candidate_lengths = batch.candidates.values.numpy(), batch.candidates.lengths
    candidate_positions = ranges(query_lengths[owner] + 1, candidate_lengths)

    if pattern.shares_queries:
        query_positions = indices_within(query_lengths) + 1
        query_types = np.zeros_like(query_ids)
    else:
        query_ids = query_ids[ranges(batch.queries.cu_seqlens[:-1][owner], query_lengths[owner])]
        query_lengths = query_lengths[owner]
        query_positions = indices_within(query_lengths) + 1
        query_types = np.zeros_like(query_ids)
        owner = np.arange(len(owner))
        if sentence_token is not None:
            is_global = candidate_ids == sentence_token
            candidate_of_row = np.repeat(owner, candidate_lengths)
            # A stable sort by candidate moves each candidate's sentence tokens behind its copy of the query.
            query_of_row = np.concatenate([np.repeat(owner, query_lengths), candidate_of_row[is_global]])
            order = np.argsort(query_of_row, kind="stable")
            query_ids = np.concatenate([query_ids, candidate_ids[is_global]])[order]
            query_positions = np.concatenate([query_positions, candidate_positions[is_global]])[order]
            query_types = np.concatenate([query_types, np.ones(int(is_global.sum()), np.int64)])[order]
            query_lengths = np.bincount(query_of_row, minlength=len(owner))
            candidate_ids, candidate_positions = candidate_ids[~is_global], candidate_positions[~is_global]
            candidate_lengths = np.bincount(candidate_of_row[~is_global], minlength=len(owner))

    num_candidates = len(owner)
    zeros = np.zeros(num_candidates, np.int64)
    return PackedTokens(
        ids=np.concatenate([zeros + cls_id, query_ids, candidate_ids]),
        positions=np.concatenate([zeros, query_positions, candidate_positions]),
        token_types=np.concatenate([zeros, query_types, np.ones_like(candidate_ids)]),
        rows=PackedRows(offsets(query_lengths), offsets(candidate_lengths), owner),
    )
