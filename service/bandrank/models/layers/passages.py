"""Long candidates as overlapping passages, scored by the best of them (MaxP; Dai & Callan 2019).

Differs from the sparse cross-encoder's code, which loses up to half a passage at the end of a document: every token
is covered.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, offsets
from bandrank_kernels.transfer import to_device


@dataclass(frozen=True)
class Passages:
    """A batch whose candidates are passages, and the candidate that each passage is a part of, ascending."""

    batch: ScoreBatch
    candidate: Ints

    def best(self, scores: Tensor, num_candidates: int) -> Tensor:
        """(num_candidates,) the highest score of each candidate's passages. scores: (num_passages,)."""
        if len(scores) == num_candidates:
            return scores
        (owner,) = to_device([torch.from_numpy(self.candidate)], scores.device)
        best = scores.new_full((num_candidates,), -torch.inf)
        return best.scatter_reduce_(0, owner, scores, "amax")


def split(batch: ScoreBatch, max_tokens: int) -> Passages:
    """Candidates that do not fit beside their query are cut into passages that do.

    max_tokens: of a whole sequence: [CLS], query, passage. A passage holds as many tokens as fit; the next starts
    half a passage later; the last one ends with the candidate. Each ends with the candidate's own last token, its
    [SEP].
    """
    room = max_tokens - 1 - np.repeat(batch.queries.lengths, np.diff(batch.cu_candidates))
    lengths = batch.candidates.lengths
    if (lengths <= room).all():
        return Passages(batch, np.arange(len(batch.candidates)))
    pieces: list[Tensor] = []
    candidate: list[int] = []
    for index in range(len(batch.candidates)):
        tokens = batch.candidates[index]
        for begin, end in passage_bounds(len(tokens), int(room[index])):
            pieces.append(tokens[begin:end] if end == len(tokens) else torch.cat([tokens[begin:end], tokens[-1:]]))
            candidate.append(index)
    per_candidate = np.bincount(candidate, minlength=len(batch.candidates))
    cu_candidates = offsets(per_candidate)[batch.cu_candidates]
    return Passages(ScoreBatch(batch.queries, Ragged.from_tensors(pieces), cu_candidates), np.array(candidate))


def passage_bounds(num_tokens: int, room: int) -> list[tuple[int, int]]:
    """Where the passages of a candidate of `num_tokens`, its [SEP] included, begin and end when `room` tokens fit,
    [SEP] included.

    The last passage holds the candidate's own [SEP], the others leave room for a copy. Raises ValueError if not even
    one token and a [SEP] fit.
    """
    if num_tokens <= room:
        return [(0, num_tokens)]
    if room < 2:
        raise ValueError(f"no room for a passage: {room} tokens beside the query")
    bounds = []
    begin = 0
    while begin + room < num_tokens:
        bounds.append((begin, begin + room - 1))
        begin += max(1, room // 2)
    return [*bounds, (begin, num_tokens)]
