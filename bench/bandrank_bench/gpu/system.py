"""One way to compute the attention of a layer, ours or another, and the names of those that goals speak of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

FULL_BACKENDS = ("full flash", "full cudnn", "full efficient")  # torch's, of full attention


@dataclass(frozen=True)
class System:
    """One way to compute the attention of a layer.

    arrange: its layout, from packed qkv (num_rows, 3, num_heads, head_dim); not timed, as a model could keep it.
    attend: the timed part.  pack: its results as packed rows, to be compared with ours; None if its function differs.
    """

    name: str
    arrange: Callable[[Tensor], Sequence[Tensor]]
    attend: Callable[..., Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor]], Tensor] | None = None
