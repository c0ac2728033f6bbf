"""A second kind of encoder, of bricks that BERT does not have, and the same encoder written out on dense tensors.

It has rotary positions, pre-norm blocks, SwiGLU and no biases; in every second layer a token sees only `local_window`
neighbours on each side.
"""

from dataclasses import dataclass
from typing import Any

import torch
from support.models import HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS
from support.tokenizer import vocab_size
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions, PreNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.positions import Rotary

EPS = 1e-5


@dataclass(frozen=True)
class OtherConfig(EncoderConfig):
    """BERT's fields, and the window of local layers."""

    num_token_types: int = 0
    layer_norm_eps: float = EPS
    kind: str = "other"
    local_window: int = 3


def other_encoder(config: OtherConfig) -> Stack:
    """What a family's file in `models/encoders` would hold."""
    blocks = []
    for index in range(config.num_layers):
        local = index % 2 == 1
        options = BlockOptions(
            activation="swiglu",
            bias=False,
            norm_bias=False,
            rotary=Rotary(base=100.0 if local else 1000.0),
            window=config.local_window if local else None,
        )
        blocks.append(PreNormBlock(config, options, final=index == config.num_layers - 1))
    return Stack(config, Embeddings(config, position_table=False, bias=False), blocks)


def turned(heads: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions as products of complex numbers. heads: (len, num_heads, head_dim)."""
    half = heads.shape[-1] // 2
    angles = positions[:, None].double() / base ** (torch.arange(half).double() / half)
    numbers = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    turned = numbers * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([turned.real, turned.imag], -1).float()


def dense_states(weights: dict[str, Tensor], config: OtherConfig, ids: list[int], near: Tensor) -> Tensor:
    """(len, hidden_size) last states of one sequence under full attention, positions from 0.

    near: (len, len) bool, the rows that a row sees in a layer of local attention.
    """

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps=EPS)

    positions = torch.arange(len(ids))
    hidden = norm(weights["embeddings.word.weight"][ids], "embeddings.norm")
    for index in range(config.num_layers):
        local, layer = index % 2 == 1, f"layers.{index}"
        rows = norm(hidden, f"{layer}.attention_norm") @ weights[f"{layer}.qkv.weight"].T
        query, key, value = rows.view(len(ids), 3, config.num_heads, -1).unbind(1)
        query, key = (turned(heads, positions, 100.0 if local else 1000.0) for heads in (query, key))
        scores = torch.einsum("ihd,jhd->hij", query, key) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~near, -torch.inf) if local else scores
        attended = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value).flatten(1)
        hidden = hidden + attended @ weights[f"{layer}.attention_out.weight"].T
        gate, gated = (norm(hidden, f"{layer}.out_norm") @ weights[f"{layer}.up.weight"].T).chunk(2, -1)
        hidden = hidden + (silu(gate) * gated) @ weights[f"{layer}.down.weight"].T
    return norm(hidden, f"layers.{config.num_layers - 1}.final_norm")


def other_config(**more: Any) -> OtherConfig:
    """A config of the size of the other tiny models, with four layers. more: further fields."""
    return OtherConfig(vocab_size(), HIDDEN_SIZE, 4, NUM_HEADS, INTERMEDIATE_SIZE, 512, **more)
