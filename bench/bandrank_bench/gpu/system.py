"""A way to compute the attention of a layer, ours or another, and the names of those in goals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

FULL_BACKENDS = ("full flash", "full cudnn", "full efficient")  # torch's full attention


@dataclass(frozen=True)
class System:
    """One way to compute the attention of a layer.

    arrange: makes its layout from packed qkv (num_rows, 3, num_heads, head_dim); untimed, as a model could keep it.
    attend: the timed part.  pack: packs its outputs for comparison with ours; None if it computes another function.
    """

    name: str
    arrange: Callable[[Tensor], Sequence[Tensor]]
    attend: Callable[..., Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor]], Tensor] | None = None
