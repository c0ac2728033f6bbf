"""The rows of a cross-encoder's batch: [CLS of every candidate | each query once | candidates]."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank_kernels.arrays import Ints, indices_within, offsets, ranges
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, bucket_rows


@dataclass(frozen=True)
class PackedTokens:
    """The inputs of a cross-encoder in host memory.

    padded: (3, `bucket_rows`) ids, positions and token types, zeros behind those of the batch.  rows: the layout of the
    rows.
    """

    padded: Ints
    rows: PackedRows

    @property
    def numbers(self) -> Ints:
        """(3, num_rows) ids, positions and token types."""
        return self.padded[:, : self.rows.num_rows]


@dataclass(frozen=True)
class PackedInputs:
    """The inputs of a cross-encoder on the device, with the plan of their attention.

    numbers: (3, num_rows) int64, ids, positions and token types.  num_candidates: the number of [CLS] rows, which come
    first. Both counts include unused rows and candidates of a bucket.
    """

    numbers: Tensor
    plan: AttentionPlan
    num_candidates: int

    @classmethod
    def of(cls, packed: PackedTokens, plan: AttentionPlan, device: torch.device) -> "PackedInputs":
        """Copies tokens and plan tables to the device in one transfer."""
        numbers, *tables = to_device([torch.from_numpy(packed.padded), *plan.host_tables], device)
        return cls(numbers[:, : packed.rows.num_rows], plan.bind(tables), packed.rows.num_candidates)


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
    query_types: Ints | int = 0

    if pattern.shares_queries:
        query_positions = indices_within(query_lengths) + 1
        rows = PackedRows(batch.queries.cu_seqlens, batch.candidates.cu_seqlens, owner)
    else:
        query_ids = query_ids[ranges(batch.queries.cu_seqlens[:-1][owner], query_lengths[owner])]
        query_lengths = query_lengths[owner]
        query_positions = indices_within(query_lengths) + 1
        owner = np.arange(len(owner))
        if sentence_token is not None:
            is_global = candidate_ids == sentence_token
            candidate_of_row = np.repeat(owner, candidate_lengths)
            # A stable sort by candidate moves each candidate's sentence tokens behind its copy of the query.
            query_of_row = np.concatenate([np.repeat(owner, query_lengths), candidate_of_row[is_global]])
            order = np.argsort(query_of_row, kind="stable")
            query_ids = np.concatenate([query_ids, candidate_ids[is_global]])[order]
            query_positions = np.concatenate([query_positions, candidate_positions[is_global]])[order]
            query_types = np.repeat([0, 1], [len(query_of_row) - is_global.sum(), is_global.sum()])[order]
            query_lengths = np.bincount(query_of_row, minlength=len(owner))
            candidate_ids, candidate_positions = candidate_ids[~is_global], candidate_positions[~is_global]
            candidate_lengths = np.bincount(candidate_of_row[~is_global], minlength=len(owner))
        rows = PackedRows(offsets(query_lengths), offsets(candidate_lengths), owner)

    queries, candidates = slice(rows.first_query_row, rows.first_candidate_row), slice(rows.first_candidate_row, None)
    padded = np.empty((3, bucket_rows(rows)), np.int64)
    padded[:, rows.num_rows :] = padded[:, : rows.num_candidates] = 0
    numbers = padded[:, : rows.num_rows]
    numbers[0, : rows.num_candidates] = cls_id
    numbers[0, queries], numbers[1, queries], numbers[2, queries] = query_ids, query_positions, query_types
    numbers[0, candidates], numbers[1, candidates], numbers[2, candidates] = candidate_ids, candidate_positions, 1
    return PackedTokens(padded, rows)
