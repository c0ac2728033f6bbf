"""Linear layers in int8, for inference on a CPU: rows of bytes times rows of bytes, exact until they are scaled."""

from typing import Self

import torch
from torch import Tensor, nn

from bandrank.models.layers.linear import ALL, Activation, Linear, LinearLayer
from bandrank_kernels.native.tensors import MULTIPLE, Int8Weights, Split, linear

LARGEST = 127
# Bytes that are added to a row for its largest inputs: a register of them, the least that can be. They are worth their
# time if the steps of rows become so many times finer, and by as much more as rows become longer.
COPIES, FINER = MULTIPLE, 1.2


class Int8Linear(LinearLayer):
    """The layer whose weights are whole multiples, -127 to 127, of a scale for each output.

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
        """The nearest such layer: the largest weight of each output keeps its value. Weights that were stored as int8
        rows come out as they were stored. Raises ValueError as `why_not_int8` says.
        """
        if reason := why_not_int8(layer):
            raise ValueError(reason)
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        rows = (weight / scales[:, None]).round().to(torch.int8)
        return cls(rows, scales, None if layer.bias is None else layer.bias.detach().float())

    def adapt(self, inputs: Tensor) -> None:
        """Computes rows like these more exactly, if some inputs are much larger than the others in them.

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
    """Why a layer cannot be computed in int8, as a clause; None if it can."""
    if layer.in_features % MULTIPLE:
        return f"a layer has {layer.in_features} inputs, no multiple of {MULTIPLE}"
    return None if layer.weight.isfinite().all() else "a weight is not finite"


def split_for(inputs: Tensor) -> Split | None:
    """How the inputs of a layer are best split, given some rows of them; None if that would gain little.

    One byte after the other goes to the input that most often is the largest or the least of its row.
    inputs: (n, in_features).
    """
    num_bytes = torch.ones(inputs.shape[1], dtype=torch.int64)
    shares = inputs.clone()
    for _ in range(COPIES):
        outliers = torch.cat([shares.argmax(1), shares.argmin(1)])
        worst = outliers.bincount(minlength=len(num_bytes)).argmax()
        num_bytes[worst] += 1
        shares[:, worst] = inputs[:, worst] / num_bytes[worst]
    enough = FINER + COPIES / len(num_bytes)
    return Split.of(num_bytes) if _mean_span(inputs) > enough * _mean_span(shares) else None


def _mean_span(rows: Tensor) -> Tensor:
    """From the least number of a row, or zero, to its largest."""
    return (rows.amax(1).clamp(min=0) - rows.amin(1).clamp(max=0)).mean()
