"""Learnt codes that attend to a text (Humeau et al. 2020, section 4.4)."""

import torch
from torch import Tensor

from bandrank.models.layers.precision import in_float32
from bandrank.models.ragged import Ragged
from bandrank_kernels.transfer import to_device


def attend_codes(codes: Tensor, states: Tensor, scale: float = 1.0) -> Tensor:
    """(num_codes, hidden_size) averages of a text's states, weighted by the softmax of scale * code . state.

    codes: (num_codes, hidden_size).  states: (len, hidden_size). An empty text gives zeros. Computed in float32:
    without scaling, products of states of 768 dimensions reach the hundreds.
    """
    rows = states.float()
    with in_float32(rows.device):
        return torch.softmax(codes.float() @ rows.T * scale, -1) @ rows


def attend_codes_apart(codes: Tensor, states: Ragged) -> Tensor:
    """(n, num_codes, hidden_size) `attend_codes` for each of n texts."""
    if states.values.device.type == "cpu":  # one text's rows stay in the cache: up to seven times as fast
        averages = [attend_codes(codes, states[index]) for index in range(len(states))]
        return torch.stack(averages) if averages else states.values.new_zeros(0, *codes.shape, dtype=torch.float32)
    return attend_codes_together(codes, states)


def attend_codes_together(codes: Tensor, states: Ragged) -> Tensor:
    """(n, num_codes, hidden_size) `attend_codes_apart`, with a number of launches that does not depend on n."""
    (lengths,) = to_device([torch.from_numpy(states.lengths)], states.values.device)
    owner = torch.repeat_interleave(lengths, output_size=len(states.values))
    return attend_codes_by_owner(codes, states.values, owner, len(states))


def attend_codes_by_owner(codes: Tensor, states: Tensor, owner: Tensor, num_texts: int) -> Tensor:
    """(num_texts, num_codes, hidden_size) `attend_codes` for each text; only launches kernels.

    states: (total, hidden_size).  owner: (total,) int64, the text of each row.
    """
    rows = states.float()
    with in_float32(rows.device):
        logits = rows @ codes.float().T
    index = owner[:, None].expand_as(logits)
    shape = num_texts, len(codes)
    highest = logits.new_full(shape, -torch.inf).scatter_reduce(0, index, logits.detach(), "amax")
    weights = torch.exp(logits - highest[owner])
    shares = weights / logits.new_zeros(shape).index_add(0, owner, weights)[owner]
    zeros = rows.new_zeros(num_texts, rows.shape[1])
    return torch.stack([zeros.index_add(0, owner, share[:, None] * rows) for share in shares.T], 1)
