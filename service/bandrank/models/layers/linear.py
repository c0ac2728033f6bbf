"""A linear layer whose weights are laid out once for the CPU's matrix units."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bandrank.models.layers.execution import Execution

Activation = Literal["none", "gelu"]


class Linear(nn.Linear):
    """y = activation(x W^T + b).

    After `prepare_for` on a CPU with oneDNN the weights are kept in oneDNN's blocked layout, with the activation (GELU:
    the exact erf form, as in BERT) fused into the product; torch's own path reorders the weights in every call. Same
    result to rounding.
    """

    _packed: Tensor | None = None

    def prepare_for(self, execution: Execution) -> None:
        """Lays the weights out for inference, where the device and dtype have such a layout; otherwise does nothing."""
        del execution  # the product of a CPU has one backend
        weight = self.weight.detach()
        usable = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no annotation here
        if weight.dtype == torch.bfloat16:
            usable = usable and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        elif weight.dtype != torch.float32:
            usable = False
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if usable else None

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        if self._packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, activation, [], "none")
            return y
        y = super().forward(x)
        return functional.gelu(y) if activation == "gelu" else y
