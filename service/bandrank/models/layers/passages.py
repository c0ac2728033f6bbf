"""Long candidates as overlapping passages, scored by the best of them (MaxP; Dai & Callan 2019).

Every token is in a passage, unlike in the sparse cross-encoder's code, which loses up to half a passage at the end.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Ints, indices_within, offsets, ranges
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

    max_tokens: the most tokens of query and passage with the `leading` ones ([CLS]). A passage has as many tokens as
    fit, the next one starts half a passage later, and the last one ends with the candidate. Each ends with a copy of
    the candidate's last `closing` tokens, which are [SEP] or the end of a prompt.
    """
    room = max_tokens - leading - batch.queries.lengths[batch.candidate_query]
    lengths, cu_seqlens = batch.candidates.lengths, batch.candidates.cu_seqlens
    if (lengths <= room).all():
        return Passages(batch, np.arange(len(batch.candidates)))
    candidate, begin, end = _bounds(lengths, room, closing)
    # A passage is two runs of its candidate's tokens; the second, its closing, is empty in the last passage.
    starts = np.stack([cu_seqlens[candidate] + begin, cu_seqlens[candidate + 1] - closing], 1)
    sizes = np.stack([end - begin, np.where(end == lengths[candidate], 0, closing)], 1)
    tokens = batch.candidates.values.numpy()[ranges(starts.ravel(), sizes.ravel())]
    passages = Ragged(torch.from_numpy(tokens), offsets(sizes.sum(1)))
    cu_candidates = np.searchsorted(candidate, batch.cu_candidates)
    return Passages(ScoreBatch(batch.queries, passages, cu_candidates), candidate)


def _bounds(lengths: Ints, room: Ints, closing: int) -> tuple[Ints, Ints, Ints]:
    """(num_passages,) the candidate of each passage, where it begins and where it ends: the `passage_bounds` of all
    candidates. lengths, room: (num_candidates,).
    """
    is_long = lengths > room
    if (without := room[is_long & (room <= closing)]).size:
        raise _no_room(int(without[0]))
    step = np.maximum(1, (room + 1 - closing) // 2)
    count = np.where(is_long, 1 - (room - lengths) // step, 1)  # one more than steps until the rest fits
    candidate, number = np.repeat(np.arange(len(lengths)), count), indices_within(count)
    begin = number * step[candidate]
    is_last = number == count[candidate] - 1
    return candidate, begin, np.where(is_last, lengths[candidate], begin + room[candidate] - closing)


def most_tokens(num_passages: int, room: int, *, closing: int = 1) -> int:
    """The most token ids of a candidate in `num_passages` passages; `room` and `closing` as in `passage_bounds`."""
    return (num_passages - 1) * max(1, (room + 1 - closing) // 2) + room


def passage_bounds(num_tokens: int, room: int, *, closing: int = 1) -> list[tuple[int, int]]:
    """(begin, end) of the passages of a candidate of `num_tokens`, if `room` tokens fit; both counts include its last
    `closing` tokens.

    All passages but the last leave room for a copy of these. Raises ValueError if not even one more token fits.
    """
    if num_tokens <= room:
        return [(0, num_tokens)]
    if room <= closing:
        raise _no_room(room)
    bounds = []
    begin = 0
    while begin + room < num_tokens:
        bounds.append((begin, begin + room - closing))
        begin += max(1, (room + 1 - closing) // 2)
    return [*bounds, (begin, num_tokens)]


def _no_room(room: int) -> ValueError:
    return ValueError(f"no room for a passage: {room} tokens beside the query")
