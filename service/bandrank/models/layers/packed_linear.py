"""Linear layers whose weights are packed for the CPU kernels, for inference."""

from torch import Tensor, nn

from bandrank.models.layers.linear import ALL, Activation, Linear, LinearLayer
from bandrank_kernels.native.tensors import linear
from bandrank_kernels.native.weights import MULTIPLE, PackedWeights


class PackedLinear(LinearLayer):
    """A linear layer that the CPU kernels compute, each row by itself, so that a row's outputs are the same bits in any
    batch. Layers without a bias are legal.

    packed: the weights as the kernels take them.
    """

    absorbs = False
    packed: PackedWeights

    def __init__(self, out_features: int, bias: Tensor | None) -> None:
        """bias: (out_features,) float32 or None."""
        super().__init__()
        self.out_features = out_features
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        y = linear(x.flatten(0, -2), self.packed, gelu=activation == "gelu")
        return y.view(*x.shape[:-1], self.out_features)

    def bias_rows(self, rows: slice = ALL) -> Tensor:
        return self.packed.bias.new_zeros(self.out_features)[rows] if self.bias is None else self.bias[rows]


def bias_of(layer: Linear) -> Tensor | None:
    """The bias of a layer in float32, or None."""
    return None if layer.bias is None else layer.bias.detach().float()


def why_not_packed(layer: Linear) -> str | None:
    """Why a layer of finite weights cannot be packed, as a clause; None if it can."""
    odd = layer.in_features % MULTIPLE
    return f"a layer has {layer.in_features} inputs, which is not a multiple of {MULTIPLE}" if odd else None
