"""Linear layers in bfloat16, for inference on a CPU: rows and weights are rounded, and sums are in float32."""

from typing import Self

import torch
from torch import Tensor, nn

from bandrank.models.layers.execution import Execution
from bandrank.models.layers.linear import ALL, Linear, WholeLinear
from bandrank.models.layers.packed_linear import PackedLinear, bias_of
from bandrank_kernels.native.weights import PackedWeights


class BFloat16Linear(PackedLinear):
    """A linear layer whose weights and inputs are rounded to bfloat16; its outputs are in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, whole: bool) -> None:
        """weight: (out_features, in_features) bfloat16.  bias: (out_features,) or None.  whole: see `WholeLinear`."""
        super().__init__(len(weight), bias)
        self.bits = nn.Parameter(weight.view(torch.int16), requires_grad=False)  # which `Module.to` does not convert
        self.packed = PackedWeights.pack_bfloat16(weight, bias)
        self._whole = whole

    @classmethod
    def of(cls, layer: Linear) -> Self:
        """The layer, rounded to bfloat16. Raises ValueError for sizes that kernels do not take."""
        return cls(layer.weight.detach().bfloat16(), bias_of(layer), whole=isinstance(layer, WholeLinear))

    def prepare_for(self, execution: Execution) -> None:
        """Drops the weights beside the packed ones where nothing reads them."""
        if self._whole and not execution.stores:
            self.bits = nn.Parameter(self.bits.to("meta"), requires_grad=False)

    def weight_rows(self, rows: slice = ALL) -> Tensor:
        return self.bits[rows].view(torch.bfloat16).float()
