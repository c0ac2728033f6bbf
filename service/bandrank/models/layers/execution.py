"""How layers compute when they serve, which `prepare` decides once for a whole scorer."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bandrank_kernels import Backend

# Below this the host takes longer to launch than the GPU to run, and launching through cupy costs it more than torch's
# two kernels. Estimated; `make gpu-check` measures both. Where graphs are replayed there is no such limit.
MANY_ROWS = 8192


@dataclass(frozen=True)
class Execution:
    """backend: of the kernels.  fused_from: rows from which on a sum and its LayerNorm are one operation; the same
    kernels must run for a batch whether it is launched or replayed.
    """

    backend: Backend = "auto"
    fused_from: int = MANY_ROWS


@runtime_checkable
class Preparable(Protocol):
    """A layer that computes in more than one way."""

    def prepare_for(self, execution: Execution) -> None:
        """Makes the layer ready to infer on the device and in the dtype of its weights, which stay as they are."""
