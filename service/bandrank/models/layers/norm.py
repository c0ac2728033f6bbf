"""LayerNorm behind a sum (Ba et al. 2016, arXiv 1607.06450): on a GPU, one launch for both."""

import torch
from torch import Tensor, nn

from bandrank_kernels.row_norms import add_norm


class LayerNorm(nn.LayerNorm):
    """torch's, with the residual of a post-LN layer."""

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """LayerNorm of x + residual, both (total, hidden_size); the same shape."""
        if runs_fused(x):
            return add_norm(x, residual, self.weight, self.bias, eps=self.eps)
        return self(x + residual)  # type: ignore[no-any-return]


def runs_fused(rows: Tensor) -> bool:
    """Whether sums of `rows` and others go to the fused operations: on a GPU, for inference.

    For a gradient torch keeps the statistics, where those compute the sum again; under autocast the dtypes differ.
    """
    return rows.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
