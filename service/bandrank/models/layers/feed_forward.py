"""The feed-forward sublayer of a layer: two linear layers with GELU or a gated unit between them (Shazeer 2020, arXiv
2002.05202).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from bandrank.models.layers.linear import Linear

Activation = Literal["gelu", "geglu", "geglu_tanh", "reglu", "relu", "swiglu"]
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": gelu,
    "geglu_tanh": partial(gelu, approximate="tanh"),
    "reglu": relu,
    "swiglu": silu,
}


def up_size(intermediate_size: int, activation: Activation) -> int:
    """The outputs of the first linear layer; a gated unit has first the gate, then the gated values."""
    return 2 * intermediate_size if activation in GATES else intermediate_size


def feed_forward(up: Linear, down: Linear, rows: Tensor, activation: Activation) -> Tensor:
    """(total, hidden_size) down(gelu(up(x))), or down(act(gate) * gated) with GELU, ReLU or SiLU.

    rows: (total, hidden_size). GELU is the exact erf form, except in geglu_tanh.
    """
    if activation == "gelu":
        return down(up(rows, "gelu"))  # type: ignore[no-any-return]
    if activation == "relu":
        return down(relu(up(rows)))  # type: ignore[no-any-return]
    gate, gated = up(rows).chunk(2, -1)
    if len(rows) == 1:  # contiguous, for which torch has another GELU with other bits
        gate = gate.expand(2, -1)
    return down(GATES[activation](gate)[: len(rows)] * gated)  # type: ignore[no-any-return]
