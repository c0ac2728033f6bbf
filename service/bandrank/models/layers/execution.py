"""How layers compute at inference; `prepare` decides it for a whole scorer."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from bandrank_kernels import Backend


@dataclass(frozen=True)
class Execution:
    """The choices that a scorer's layers share.

    backend: of the kernels.  graphs: whether CUDA graphs replay batches. Launched and replayed batches are computed
    alike, so that both give the same bits.
    stores: whether representations are stored, which another machine may read: GELU then keeps its exact form.
    dtype: of the encoder's weights, and of the states that it computes.
    """

    backend: Backend = "auto"
    graphs: bool = False
    stores: bool = False
    dtype: torch.dtype = torch.float32


@runtime_checkable
class Preparable(Protocol):
    """A layer that can compute in more than one way."""

    def prepare_for(self, execution: Execution) -> None:
        """Prepares the layer for inference on the device and in the dtype of its weights, which do not change."""
