"""What the CPU kernels are given of a block whose linear layers are in int8."""

from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn

from bandrank.models.layers.feed_forward import Activation
from bandrank.models.layers.int8_linear import Int8Linear
from bandrank.models.layers.norm import LayerNorm, RMSNorm
from bandrank.models.layers.positions import Rotary
from bandrank_kernels.native.tensors import Int8Weights, Norm, Unit, project

Packed = tuple[Int8Weights, Int8Weights, Int8Weights, Unit]
UNITS: dict[Activation, Unit] = {
    "gelu": Unit.GELU,
    "geglu": Unit.GEGLU,
    "geglu_tanh": Unit.GEGLU_TANH,
    "swiglu": Unit.SWIGLU,
}


def packed_layers(out: nn.Module, up: nn.Module, down: nn.Module, activation: Activation) -> Packed | None:
    """The weights of the layers behind a block's attention; None if some are not in int8."""
    if isinstance(out, Int8Linear) and isinstance(up, Int8Linear) and isinstance(down, Int8Linear):
        return out.packed, up.packed, down.packed, UNITS[activation]
    return None


@overload
def numbers_of(norm: LayerNorm) -> Norm: ...
@overload
def numbers_of(norm: LayerNorm | None) -> Norm | None: ...
def numbers_of(norm: LayerNorm | None) -> Norm | None:
    """The weights of a norm, if there is one."""
    return None if norm is None else Norm(norm.weight, norm.bias, norm.eps, not isinstance(norm, RMSNorm))


@dataclass(frozen=True, eq=False)
class Projection:
    """From rows to heads of queries, keys and values, of which the first are turned by rotary positions, in one call.

    norm: of the rows.  head_norms: (turned, head_dim) weights of RMSNorms of the heads that are turned, and their eps.
    """

    weights: Int8Weights
    norm: Norm | None
    rotary: Rotary
    head_dim: int
    turned: int
    head_norms: tuple[Tensor, float] | None = None

    def __call__(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """(n, heads, head_dim). hidden: (n, inputs).  positions: (n,) int64."""
        if not len(hidden):
            return hidden.new_empty(0, self.weights.outputs // self.head_dim, self.head_dim)
        return project(
            hidden,
            self.weights,
            self.norm,
            head_dim=self.head_dim,
            turned=self.turned,
            positions=positions,
            tables=self.rotary.tables(self.head_dim, positions),
            head_norms=self.head_norms,
        )


def norms_of_heads(*norms: tuple[nn.Module, int]) -> tuple[Tensor, float] | None:
    """The weights of each head's norm, and their eps, for so many heads of each norm; None if they are not RMSNorms."""
    given = [(norm, count) for norm, count in norms if isinstance(norm, RMSNorm)]
    if not given:
        return None
    return torch.cat([norm.weight.expand(count, -1) for norm, count in given]), given[0][0].eps
