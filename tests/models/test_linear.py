"""A linear layer that stores its weights in another form can replace any other, because nothing reads the weights
directly.
"""

import random
from typing import Any

import pytest
import torch
from support.models import as_served, score_batch
from support.variants import VARIANTS, random_texts, template_ids
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from bandrank.models import compact
from bandrank.models.layers.linear import ALL, Activation, Linear, LinearLayer

CLOSE = 1e-4  # float32 through two layers; some scores are sums over 32 rows, or products of vectors of length 6


class Int8Linear(LinearLayer):
    """A layer of int8 rows with a scale for each, as compact.py packs them. It has no `weight` and no `bias`."""

    def __init__(self, other: Linear) -> None:
        super().__init__()
        self.out_features = other.out_features
        packed = compact.pack({"w": other.weight.detach().float()}, int8=("w",))
        self.rows, self.scale = packed["w"], packed["w" + compact.SCALE]
        self.offsets = torch.zeros(len(self.rows)) if other.bias is None else other.bias.detach().clone()

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        y = linear(x, self.weight_rows(), self.offsets)
        return gelu(y) if activation == "gelu" else y

    def weight_rows(self, rows: slice = ALL) -> Tensor:
        return self.rows[rows].float() * self.scale[rows, None]

    def bias_rows(self, rows: slice = ALL) -> Tensor:
        return self.offsets[rows]


def replace_linears(module: nn.Module) -> int:
    """Replaces every `Linear` by a stand-in, and returns how many there were."""
    count = 0
    for name, part in list(module.named_children()):
        if isinstance(part, Linear):
            setattr(module, name, Int8Linear(part))
            count += 1
        else:
            count += replace_linears(part)
    return count


def round_linears(module: nn.Module) -> None:
    """Gives every `Linear` the rounded weights of its stand-in."""
    for part in module.modules():
        if isinstance(part, Linear):
            part.weight.detach().copy_(Int8Linear(part).weight_rows())


@pytest.mark.parametrize(
    "variant", [name for name in VARIANTS if "decoder" not in name]
)  # a decoder's layers are torch's own
def test_int8_rows_stand_in(variant: str) -> None:
    """The scores are those of the rounded weights and near those of the original ones, also where a short query has so
    many candidates that absorbing its projections pays.
    """
    before, rounded, stand_in = (VARIANTS[variant]() for _ in range(3))
    round_linears(rounded)
    assert replace_linears(stand_in) >= 4 * stand_in.encoder.config.num_layers
    for scorer in (before, rounded, stand_in):
        as_served(scorer)
    rng = random.Random(9)
    many = [template_ids(before, rng, 1, query=True)], [[template_ids(before, rng, n % 60) for n in range(150)]]
    with torch.inference_mode():
        for texts in (random_texts(before), many):
            exact, expected, scores = (scorer(score_batch(*texts)) for scorer in (before, rounded, stand_in))

            torch.testing.assert_close(scores, expected, rtol=0, atol=CLOSE)
            # 32 numbers a row average rounding out less than the hundreds of a real model.
            assert (scores - exact).square().mean().sqrt() < 0.25 * exact.std()


@pytest.mark.parametrize("bias", [True, False])
def test_operations_on_heads_are_parts_of_the_product(bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(8, 36, bias=bias)
    x, y = torch.randn(3, 5, 4), torch.randn(3, 5, 8)
    rows = layer.thirds[1]
    assert rows == slice(12, 24)
    with torch.no_grad():
        of_heads = layer(y)[:, :, rows].unflatten(-1, (3, 4))  # (head's input, n, head, head_dim)
        by_head = torch.stack([of_heads[head, :, head] for head in range(3)])

        results: dict[str, Any] = {
            "project": (layer.project(y[0], rows), layer(y[0])[:, rows]),
            "project_heads": (layer.project_heads(y, rows), by_head),
            "absorb": ((layer.absorb(x, rows) * y).sum(-1) + layer.absorb_bias(x, rows), (x * by_head).sum(-1)),
        }
        out = Linear(12, 8, bias=bias)
        parts = out.outputs_of_heads(x)
        ones = torch.eye(5).repeat(1, 3)  # the sum over heads of the same row
        results["outputs"] = (out.sum_of_outputs(ones, parts.flatten(0, 1)), out(x.transpose(0, 1).flatten(1)))

    for name, (ours, expected) in results.items():
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5, msg=name)
