"""LayerNorm of a sum (Ba et al. 2016, arXiv 1607.06450), which a GPU computes in one launch, and RMSNorm."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bandrank.models.layers.execution import Execution
from bandrank_kernels.row_norms import add_norm


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, optionally of a sum with a residual."""

    execution = Execution()

    def prepare_for(self, execution: Execution) -> None:
        self.execution = execution

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """(total, hidden_size) LayerNorm of x + residual, both (total, hidden_size)."""
        if self.runs_fused(x):
            return add_norm(x, residual, self.weight, self.bias, eps=self.eps, backend=self.execution.backend)
        return self(x + residual)  # type: ignore[no-any-return]

    def runs_fused(self, rows: Tensor) -> bool:
        """Whether sums on the device of `rows` use the fused operations, which need a bias."""
        natively = self.execution.backend == "native" and not rows.is_cuda and not torch.is_grad_enabled()
        return self.bias is not None and (natively or infers_on_gpu(rows))


class RMSNorm(LayerNorm):
    """LayerNorm without centring and without a bias (Zhang & Sennrich 2019, arXiv 1910.07467)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # its name in torch
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)


def infers_on_gpu(rows: Tensor) -> bool:
    """Whether `rows` are on a GPU, for inference without autocast.

    For gradients torch keeps the statistics, which the fused operations would compute again; autocast mixes dtypes.
    """
    return rows.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
