"""LayerNorm behind a sum (Ba et al. 2016, arXiv 1607.06450): on a GPU, one launch for both."""

import torch
from torch import Tensor, nn

from bandrank_kernels import Backend
from bandrank_kernels.row_norms import add_norm

# Below this the host takes longer to launch than the GPU to run, and launching through cupy costs it more than torch's
# two kernels. Estimated; `make gpu-check` measures both. Where graphs are replayed there is no such limit.
MANY_ROWS = 8192


class LayerNorm(nn.LayerNorm):
    """torch's, with the residual of a post-LN layer.

    backend: of the fused operation.  fused_from: rows from which on it is used. The same kernels must run for a batch
    whether it is launched or replayed.
    """

    backend: Backend = "auto"
    fused_from: int = MANY_ROWS

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """LayerNorm of x + residual, both (total, hidden_size); the same shape."""
        if self.runs_fused(x, len(x)):
            return add_norm(x, residual, self.weight, self.bias, eps=self.eps, backend=self.backend)
        return self(x + residual)  # type: ignore[no-any-return]

    def runs_fused(self, rows: Tensor, count: int) -> bool:
        """Whether sums of `count` rows, of which some are `rows`, go to the fused operations, which add a bias."""
        return count >= self.fused_from and self.bias is not None and infers_on_gpu(rows)


def infers_on_gpu(rows: Tensor) -> bool:
    """Whether `rows` are on a GPU, for inference: for a gradient torch keeps the statistics, where the fused operations
    compute the sum again; under autocast the dtypes differ.
    """
    return rows.is_cuda and not torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda")
