"""Dense layers on pooled vectors, such as LaBSE's (Feng et al. 2022, arXiv 2007.01852)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from bandrank.models.layers.head import Float32Head
from bandrank.models.layers.precision import in_float32
from bandrank_kernels.pooled_scores import ACTIVATIONS, HeadActivation

DenseActivation = Literal["identity", HeadActivation]


@dataclass(frozen=True)
class DenseConfig:
    """The settings of a layer. size: of its output.  activation: what follows the product and the bias, if any."""

    size: int
    activation: DenseActivation = "identity"
    bias: bool = True


class Dense(Float32Head):
    """A layer and its activation, always in float32: it costs next to nothing, and similarities come out of it."""

    def __init__(self, config: DenseConfig, size: int) -> None:
        """size: of the input."""
        super().__init__()
        self.activation = config.activation
        self.linear = nn.Linear(size, config.size, bias=config.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, size of the output) float32. vectors: (n, size of the input)."""
        with in_float32(vectors.device):
            product = self.product(self.linear, vectors.float())
            return product if self.activation == "identity" else ACTIVATIONS[self.activation](product)
