"""Texts encoded separately, as in the towers of bi-encoders."""

import torch
from torch import Tensor

from bandrank.models.encoders.protocol import ALL, Encoder
from bandrank.models.encoders.static import StaticTable
from bandrank.models.layers.pooling import Pooling, pool, pooled_row
from bandrank.models.ragged import Ragged
from bandrank_kernels.arrays import indices_within
from bandrank_kernels.transfer import to_device


def ids_and_positions(encoder: Encoder, tokens: Ragged) -> list[Tensor]:
    """(total,) ids on the encoder's device, and (total,) positions, from 0 in each text. tokens: in host memory."""
    return to_device([tokens.values, torch.from_numpy(indices_within(tokens.lengths))], encoder.device)


def embed(encoder: Encoder, tokens: Ragged, *, token_type: int = 0) -> tuple[Tensor, Tensor]:
    """(total, hidden_size) embedded rows, and their positions. tokens: token ids in host memory."""
    ids, positions = ids_and_positions(encoder, tokens)
    return encoder.embed(ids, positions, torch.full_like(ids, token_type)), positions


def read(encoder: Encoder, tokens: Ragged, *, token_type: int = 0, layers: slice = ALL) -> Ragged:
    """(total, hidden_size) output of `layers`, which start with the first, in the encoder's dtype."""
    hidden, positions = embed(encoder, tokens, token_type=token_type)
    plan = encoder.plan_texts(tokens.cu_seqlens)
    return Ragged(encoder(hidden, positions, plan, layers=layers), tokens.cu_seqlens)


def read_pooled(encoder: Encoder, tokens: Ragged, *poolings: Pooling) -> Tensor:
    """(n, hidden_size) float32 pooled output of the last layer, or several side by side. If pooling reads one row of
    each text, that layer skips the others.
    """
    if isinstance(encoder, StaticTable) and poolings == ("mean",):
        return encoder.means(tokens)
    rows = pooled_row(tokens, poolings[0]) if len(poolings) == 1 else None
    if rows is None:
        states = read(encoder, tokens)
        return torch.cat([pool(states, each) for each in poolings], -1)
    hidden, positions = embed(encoder, tokens)
    (chosen,) = to_device([torch.from_numpy(rows)], encoder.device)
    return encoder.forward_each(hidden, positions, encoder.plan_texts(tokens.cu_seqlens), chosen).float()
