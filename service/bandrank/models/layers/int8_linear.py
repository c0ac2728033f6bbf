"""Linear layers in int8, for inference on a CPU: rows of bytes times rows of bytes, exact until they are scaled."""

from typing import Self

from torch import Tensor, nn

from bandrank.models.layers.int8_rows import int8_rows
from bandrank.models.layers.linear import ALL, Linear
from bandrank.models.layers.packed_linear import PackedLinear, bias_of
from bandrank.models.layers.splitting import split_for
from bandrank_kernels.native.weights import PackedWeights

NOT_FINITE = "a weight is not finite"


class Int8Linear(PackedLinear):
    """A linear layer whose weights are integer multiples, -127 to 127, of a scale for each output.

    Each row of inputs is quantised by itself, to 255 steps between its least and its largest number. Rows of zeros are
    legal.
    """

    def __init__(self, rows: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """rows: (out_features, in_features) int8.  scales: (out_features,).  bias: (out_features,) or None."""
        super().__init__(len(rows), bias)
        self.rows = nn.Parameter(rows, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.packed = PackedWeights.pack(rows, scales, bias)

    @classmethod
    def of(cls, layer: Linear) -> Self:
        """The nearest int8 layer: the largest weight of each output keeps its value, and weights that were stored as
        int8 rows come out as they were. Raises ValueError for a weight that is not finite, and for sizes that kernels
        do not take.
        """
        rows, scales = int8_rows(layer.weight)
        if not scales.isfinite().all():
            raise ValueError(NOT_FINITE)
        return cls(rows, scales, bias_of(layer))

    def adapt(self, inputs: Tensor) -> None:
        """Computes rows like these more exactly, if some of their inputs are much larger than the others.

        inputs: (n, in_features) finite.
        """
        self.packed = PackedWeights.pack(self.rows, self.scales, self.bias, split_for(inputs))

    def weight_rows(self, rows: slice = ALL) -> Tensor:
        return self.rows[rows] * self.scales[rows, None]
