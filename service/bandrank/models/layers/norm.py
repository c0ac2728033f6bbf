"""LayerNorm behind a sum (Ba et al. 2016, arXiv 1607.06450): on a GPU, one launch for both."""

import torch
from torch import Tensor, nn

from bandrank.models.layers.execution import Execution
from bandrank_kernels.row_norms import add_norm


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, with the residual of a post-LN layer."""

    execution = Execution()

    def prepare_for(self, execution: Execution) -> None:
        self.execution = execution

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """LayerNorm of x + residual, both (total, hidden_size); the same shape."""
        if self.runs_fused(x, len(x)):
            return add_norm(x, residual, self.weight, self.bias, eps=self.eps, backend=self.execution.backend)
        return self(x + residual)  # type: ignore[no-any-return]

    def runs_fused(self, rows: Tensor, count: int) -> bool:
        """Whether sums of `count` rows, of which some are `rows`, go to the fused operations, which add a bias."""
        return count >= self.execution.fused_from and self.bias is not None and infers_on_gpu(rows)


def infers_on_gpu(rows: Tensor) -> bool:
    """Whether `rows` are on a GPU, for inference: for a gradient torch keeps the statistics, where the fused operations
    compute the sum again; under autocast the dtypes differ.
    """
    return rows.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
