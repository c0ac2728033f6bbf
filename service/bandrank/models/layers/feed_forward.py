"""The feed-forward half of a layer: two linear layers, and between them GELU or a gated unit (Shazeer 2020, arXiv
2002.05202).
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn.functional import gelu, silu

from bandrank.models.layers.linear import Linear

Activation = Literal["gelu", "geglu", "swiglu"]
GATES: dict[str, Callable[[Tensor], Tensor]] = {"geglu": gelu, "swiglu": silu}


def up_size(intermediate_size: int, activation: Activation) -> int:
    """Output rows of the first linear layer; a gated unit's are those of the gate, then those that are gated."""
    return 2 * intermediate_size if activation in GATES else intermediate_size


def feed_forward(up: Linear, down: Linear, rows: Tensor, activation: Activation) -> Tensor:
    """down(gelu(up x)), or down(act(gate) * gated) with act GELU or SiLU. rows: (total, hidden_size); the same shape.

    GELU is the exact erf form.
    """
    if activation == "gelu":
        return down(up(rows, "gelu"))  # type: ignore[no-any-return]
    gate, gated = up(rows).chunk(2, -1)
    return down(GATES[activation](gate) * gated)  # type: ignore[no-any-return]
