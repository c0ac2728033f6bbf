"""Texts encoded separately, as in the towers of bi-encoders."""

import numpy as np
import torch
from torch import Tensor

from bandrank.models.encoders.protocol import ALL, Encoder
from bandrank.models.layers.patterns import sparse
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import Offsets, indices_within, offsets
from bandrank_kernels.transfer import to_device
from bandrank_kernels.windowed_attention import AttentionPlan, PackedRows


def embed(encoder: Encoder, tokens: Ragged, *, token_type: int = 0) -> tuple[Tensor, Tensor]:
    """(total, hidden_size) embedded rows, and their (total,) positions, from 0 in each text.

    tokens: token ids in host memory.
    """
    ids, positions = to_device([tokens.values, torch.from_numpy(indices_within(tokens.lengths))], encoder.device)
    return encoder.embed(ids, positions, torch.full_like(ids, token_type)), positions


def plan_apart(encoder: Encoder, cu_seqlens: Offsets) -> AttentionPlan:
    """The plan in which every row attends to all rows of its text."""
    # To the packing, texts are queries without candidates.
    rows = PackedRows(cu_seqlens, offsets([]), np.zeros(0, np.int64))
    return encoder.plan(rows, sparse(window=None))


def read(encoder: Encoder, tokens: Ragged, *, token_type: int = 0, layers: slice = ALL) -> Ragged:
    """(total, hidden_size) output of `layers`, which start with the first, in the encoder's dtype."""
    hidden, positions = embed(encoder, tokens, token_type=token_type)
    plan = plan_apart(encoder, tokens.cu_seqlens)
    return Ragged(encoder(hidden, positions, plan, layers=layers), tokens.cu_seqlens)
