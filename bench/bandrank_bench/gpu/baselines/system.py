"""One way to compute the attention of a layer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class System:
    """arrange: its own layout, from packed qkv (num_rows, 3, num_heads, head_dim); not timed, as a model could keep it.
    attend: what is timed.  pack: its results as packed rows, to be compared with ours; None where it computes another
    function.  capturable: False where the host must wait for the card.
    """

    name: str
    arrange: Callable[[Tensor], Sequence[Tensor]]
    attend: Callable[..., Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor]], Tensor] | None = None
    capturable: bool = True
