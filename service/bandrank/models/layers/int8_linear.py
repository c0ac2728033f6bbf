"""Linear layers in int8, for inference on a CPU: rows of bytes times rows of bytes, exact until they are scaled."""

from typing import Self

from torch import Tensor, nn

from bandrank.models.layers.int8_rows import int8_rows
from bandrank.models.layers.linear import ALL, Activation, Linear, LinearLayer
from bandrank.models.layers.splitting import split_for
from bandrank_kernels.native.tensors import MULTIPLE, Int8Weights, linear

NOT_FINITE = "a weight is not finite"


class Int8Linear(LinearLayer):
    """A linear layer whose weights are integer multiples, -127 to 127, of a scale for each output.

    Each row of inputs is quantised by itself, to 255 steps between its least and its largest number, so that a row's
    outputs are the same bits in any batch. Rows of zeros and layers without a bias are legal.
    """

    absorbs = False

    def __init__(self, rows: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """rows: (out_features, in_features) int8.  scales: (out_features,).  bias: (out_features,) or None."""
        super().__init__()
        self.out_features = len(rows)
        self.rows = nn.Parameter(rows, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.packed = Int8Weights.pack(rows, scales, bias)

    @classmethod
    def of(cls, layer: Linear) -> Self:
        """The nearest int8 layer: the largest weight of each output keeps its value, and weights that were stored as
        int8 rows come out as they were. Raises ValueError for a weight that is not finite, and for sizes that kernels
        do not take.
        """
        rows, scales = int8_rows(layer.weight)
        if not scales.isfinite().all():
            raise ValueError(NOT_FINITE)
        return cls(rows, scales, None if layer.bias is None else layer.bias.detach().float())

    def adapt(self, inputs: Tensor) -> None:
        """Computes rows like these more exactly, if some of their inputs are much larger than the others.

        inputs: (n, in_features) finite.
        """
        self.packed = Int8Weights.pack(self.rows, self.scales, self.bias, split_for(inputs))

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        y = linear(x.flatten(0, -2), self.packed, gelu=activation == "gelu")
        return y.view(*x.shape[:-1], self.out_features)

    def weight_rows(self, rows: slice = ALL) -> Tensor:
        return self.rows[rows] * self.scales[rows, None]

    def bias_rows(self, rows: slice = ALL) -> Tensor:
        return self.scales.new_zeros(self.out_features)[rows] if self.bias is None else self.bias[rows]


def why_not_int8(layer: Linear) -> str | None:
    """Why a layer of finite weights cannot be computed in int8, as a clause; None if it can."""
    odd = layer.in_features % MULTIPLE
    return f"a layer has {layer.in_features} inputs, which is not a multiple of {MULTIPLE}" if odd else None
