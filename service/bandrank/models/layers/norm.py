"""LayerNorm behind a sum (Ba et al. 2016, arXiv 1607.06450): on a GPU, one launch for both."""

import torch
from torch import Tensor, nn

from bandrank_kernels import Backend
from bandrank_kernels.row_norms import add_norm

# Below this the host takes longer to launch than the GPU to run, and launching through cupy costs it more than torch's
# two kernels. Estimated; `make gpu-check` measures both.
MANY_ROWS = 8192


class LayerNorm(nn.LayerNorm):
    """torch's, with the residual of a post-LN layer. backend: of the fused operation."""

    backend: Backend = "auto"

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """LayerNorm of x + residual, both (total, hidden_size); the same shape."""
        if runs_fused(x, len(x)):
            return add_norm(x, residual, self.weight, self.bias, eps=self.eps, backend=self.backend)
        return self(x + residual)  # type: ignore[no-any-return]


def runs_fused(rows: Tensor, count: int) -> bool:
    """Whether sums of `count` rows, of which some are `rows`, go to the fused operations: on a GPU, for inference, in a
    CUDA graph or where the rows are many.

    For a gradient torch keeps the statistics, where those compute the sum again; under autocast the dtypes differ.
    """
    if not rows.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    return count >= MANY_ROWS or torch.cuda.is_current_stream_capturing()
