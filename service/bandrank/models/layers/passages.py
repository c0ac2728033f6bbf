"""Long candidates as overlapping passages, scored by the best of them (MaxP; Dai & Callan 2019).

Every token is in a passage, unlike in the sparse cross-encoder's code, which loses up to half a passage at the end.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, indices_within, offsets
from bandrank_kernels.transfer import to_device


@dataclass(frozen=True)
class Passages:
    """A batch whose candidates are passages.

    candidate: (num_passages,) the index of each passage's candidate in the original batch, ascending.
    """

    batch: ScoreBatch
    candidate: Ints

    def best(self, scores: Tensor, num_candidates: int) -> Tensor:
        """(num_candidates,) the highest score of each candidate's passages. scores: (num_passages,)."""
        if len(scores) == num_candidates:
            return scores
        (owner,) = to_device([torch.from_numpy(self.candidate)], scores.device)
        best = scores.new_full((num_candidates,), -torch.inf)
        return best.scatter_reduce_(0, owner, scores, "amax")

    def which(self, scores: Tensor, best: Tensor) -> Tensor:
        """(num_candidates,) int64 the index, within its candidate, of the first passage with the candidate's score.

        scores: (num_passages,).  best: (num_candidates,), as from `best`.
        """
        num_passages = np.bincount(self.candidate, minlength=len(best))
        host = [self.candidate, indices_within(num_passages), num_passages - 1]
        owner, index, last = to_device([*map(torch.from_numpy, host)], scores.device)
        index = torch.where(scores == best[owner], index, last[owner])
        return last.scatter_reduce(0, owner, index, "amin")


def split(batch: ScoreBatch, max_tokens: int, *, leading: int = 1, closing: int = 1) -> Passages:
    """Splits candidates that do not fit beside their query into passages that do.

    max_tokens: the most tokens of the `leading` ones (of [CLS]), query and passage. A passage has as many tokens as
    fit, the next one starts half a passage later, and the last one ends with the candidate. Each ends with a copy of
    the candidate's last `closing` tokens, which are [SEP] or the end of a prompt.
    """
    room = max_tokens - leading - np.repeat(batch.queries.lengths, np.diff(batch.cu_candidates))
    lengths = batch.candidates.lengths
    if (lengths <= room).all():
        return Passages(batch, np.arange(len(batch.candidates)))
    pieces: list[Tensor] = []
    candidate: list[int] = []
    for index in range(len(batch.candidates)):
        tokens = batch.candidates[index]
        for begin, end in passage_bounds(len(tokens), int(room[index]), closing=closing):
            whole = end == len(tokens)
            pieces.append(tokens[begin:end] if whole else torch.cat([tokens[begin:end], tokens[-closing:]]))
            candidate.append(index)
    per_candidate = np.bincount(candidate, minlength=len(batch.candidates))
    cu_candidates = offsets(per_candidate)[batch.cu_candidates]
    return Passages(ScoreBatch(batch.queries, Ragged.from_tensors(pieces), cu_candidates), np.array(candidate))


def most_tokens(num_passages: int, room: int) -> int:
    """The most token ids, [SEP] included, of a candidate that is split into so many passages; `room` as below."""
    return (num_passages - 1) * max(1, room // 2) + room


def passage_bounds(num_tokens: int, room: int, *, closing: int = 1) -> list[tuple[int, int]]:
    """(begin, end) of the passages of a candidate of `num_tokens`, if `room` tokens fit; both counts include its last
    `closing` tokens.

    All passages but the last leave room for a copy of these. Raises ValueError if not even one more token fits.
    """
    if num_tokens <= room:
        return [(0, num_tokens)]
    if room <= closing:
        raise ValueError(f"no room for a passage: {room} tokens beside the query")
    bounds = []
    begin = 0
    while begin + room < num_tokens:
        bounds.append((begin, begin + room - closing))
        begin += max(1, (room + 1 - closing) // 2)
    return [*bounds, (begin, num_tokens)]
