"""Learnt codes that each look at a whole text (Humeau et al. 2020, section 4.4)."""

import torch
from torch import Tensor

from bandrank.models.layers.precision import in_float32


def attend_codes(codes: Tensor, states: Tensor, scale: float = 1.0) -> Tensor:
    """What each code sees in a text: the text's states, averaged with the softmax of `scale` * code . state.

    codes: (num_codes, hidden_size).  states: (len, hidden_size).  Returns (num_codes, hidden_size); zeros of an empty
    text. In float32: without scaling, the products of states of 768 dimensions reach the hundreds.
    """
    rows = states.float()
    with in_float32(rows.device):
        return torch.softmax(codes.float() @ rows.T * scale, -1) @ rows
