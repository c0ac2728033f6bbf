"""Linear layers: the interface that others may implement, and weights in a floating dtype."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bandrank.models.layers.execution import Execution
from bandrank_kernels.cuda import is_half

Activation = Literal["none", "gelu"]
ALL = slice(None)


class LinearLayer(nn.Module, ABC):
    """y = activation(x W^T + b), and operations on parts of W and b, which no other code reads.

    A layer that stores its weights in another form, such as int8 rows, implements `forward`, `weight_rows` and
    `bias_rows`; the other operations use these, and may be overridden by faster ones. Heads are equal runs of `rows`
    of W, or of its columns in `outputs_of_heads`.
    """

    out_features: int
    absorbs: ClassVar[bool] = True  # whether `absorb` and `project_heads` cost less than projecting every row

    @abstractmethod
    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        """(..., out_features). x: (..., in_features)."""

    @abstractmethod
    def weight_rows(self, rows: slice = ALL) -> Tensor:
        """(len(rows), in_features) rows of W in a floating dtype."""

    @abstractmethod
    def bias_rows(self, rows: slice = ALL) -> Tensor:
        """(len(rows),) numbers of b in a floating dtype; zeros if the layer has no bias."""

    @property
    def thirds(self) -> list[slice]:
        """The rows of the query, key and value projections, where they are stacked in one layer."""
        third = self.out_features // 3
        return [slice(start, start + third) for start in range(0, 3 * third, third)]

    def project(self, x: Tensor, rows: slice) -> Tensor:
        """(n, len(rows)) some of the outputs. x: (n, in_features)."""
        return torch.einsum("ne,oe->no", x, self.weight_rows(rows)) + self.bias_rows(rows)

    def project_heads(self, x: Tensor, rows: slice) -> Tensor:
        """(num_heads, n, head_dim) outputs of each head for its input. x: (num_heads, n, in_features)."""
        weight = self.weight_rows(rows).view(len(x), -1, x.shape[-1]).to(x.dtype)
        return x @ weight.transpose(1, 2) + self.bias_rows(rows).view(len(x), 1, -1)

    def absorb(self, x: Tensor, rows: slice = ALL) -> Tensor:
        """(num_heads, n, in_features) x W, whose product with y is that of x with W y. x: (num_heads, n, head_dim)."""
        return x @ self.weight_rows(rows).view(len(x), x.shape[2], -1)

    def absorb_bias(self, x: Tensor, rows: slice = ALL) -> Tensor:
        """(num_heads, n) the product of x with b, which `absorb` leaves out. x: (num_heads, n, head_dim)."""
        return (x @ self.bias_rows(rows).view(len(x), -1, 1).to(x.dtype))[..., 0]

    def outputs_of_heads(self, x: Tensor) -> Tensor:
        """(num_heads, n, out_features) the share of each head's columns in x W^T. x: (num_heads, n, head_dim)."""
        return x @ self.weight_rows().view(-1, len(x), x.shape[2]).permute(1, 2, 0)

    def sum_of_outputs(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """(n, out_features) weighted sums of such shares, plus b. weights: (n, m).  outputs: (m, out_features)."""
        return torch.addmm(self.bias_rows(), weights, outputs)


class Linear(LinearLayer, nn.Linear):
    """A trainable linear layer with weights in a floating dtype.

    After `prepare_for`, on a CPU with oneDNN, weights have oneDNN's blocked layout and the activation (GELU: the exact
    erf form) is fused into the product, with the same result to rounding; torch would reorder the weights in every
    call.

    In half precision, if CUDA graphs replay batches, cuBLAS fuses GELU in its tanh form, which saves a launch and a
    pass over the outputs. That moves the shipped scorers' scores by at most a third of what bfloat16 itself does, and
    by twice what float16 does; kernels/README.md shows the effect on rankings. Scorers whose representations are stored
    keep the exact form.
    """

    _packed: Tensor | None = None
    _gelu_in_product = False

    def prepare_for(self, execution: Execution) -> None:
        """Lays the weights out for inference if the device and dtype have such a layout; chooses the form of GELU."""
        weight = self.weight.detach()
        half = is_half(weight.dtype)
        self._gelu_in_product = execution.graphs and not execution.stores and half and self.bias is not None
        usable = weight.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch has no annotation here
        if weight.dtype == torch.bfloat16:
            usable = usable and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        elif weight.dtype != torch.float32:
            usable = False
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None) if usable else None

    def weight_rows(self, rows: slice = ALL) -> Tensor:
        return self.weight[rows]

    def bias_rows(self, rows: slice = ALL) -> Tensor:
        return self.weight.new_zeros(self.out_features)[rows] if self.bias is None else self.bias[rows]

    def copy_rows(self, source: LinearLayer, rows: slice = ALL) -> None:
        """Copies weights and biases of another layer, from as many of its rows as this layer has."""
        self.weight.detach().copy_(source.weight_rows(rows))
        self.bias.detach().copy_(source.bias_rows(rows))

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        if self._packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, activation, [], "none")
            return y
        if activation == "gelu" and self._gelu_in_product:
            return torch._addmm_activation(self.bias, x, self.weight.T, use_gelu=True)
        y = functional.linear(x, self.weight, self.bias)
        return functional.gelu(y) if activation == "gelu" else y


class WholeLinear(Linear):
    """A linear layer whose weights are never read in part: once they are laid out for inference, the originals are
    dropped, since they would take as much memory again. If representations are stored, under a fingerprint of the
    weights, the layer keeps them.
    """

    def prepare_for(self, execution: Execution) -> None:
        super().prepare_for(execution)
        if self._packed is not None and not execution.stores:
            self.weight = nn.Parameter(self.weight.to("meta"), requires_grad=False)
