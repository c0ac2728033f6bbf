"""Dense layers on pooled vectors, such as LaBSE's (Feng et al. 2022, arXiv 2007.01852), and on the states of a ColBERT
(Clavié et al. 2025, arXiv 2510.12327).
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from bandrank.models.layers.head import Float32Head
from bandrank.models.layers.precision import in_float32
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation

DenseActivation = Literal["identity", HeadActivation]


@dataclass(frozen=True)
class DenseConfig:
    """The settings of a layer.

    size: of its output.  activation: what follows the product and the bias, if any.  residual: whether the input is
    added at the end, by a product of its own if it has another size.
    """

    size: int
    activation: DenseActivation = "identity"
    bias: bool = True
    residual: bool = False


class Dense(Float32Head):
    """A layer and its activation, always in float32: it costs next to nothing, and similarities come out of it."""

    def __init__(self, config: DenseConfig, size: int) -> None:
        """size: of the input."""
        super().__init__()
        self.activation = config.activation
        self.linear = nn.Linear(size, config.size, bias=config.bias)
        self.residual: nn.Module | None = None
        if config.residual:
            self.residual = nn.Identity() if size == config.size else nn.Linear(size, config.size, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, size of the output) float32. vectors: (n, size of the input)."""
        with in_float32(vectors.device):
            vectors = vectors.float()
            output = self.product(self.linear, vectors)
            if self.activation != "identity":
                output = ACTIVATIONS[self.activation](output)
            if isinstance(self.residual, nn.Linear):
                return output + self.product(self.residual, vectors)
            return output if self.residual is None else output + vectors
