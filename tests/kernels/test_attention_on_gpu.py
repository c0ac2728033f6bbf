"""Windowed attention on a GPU: the kernels that the CPU emulates, as cupy compiles and launches them."""

import pytest
import torch
from support.layouts import packed_rows
from torch import Tensor

from bandrank_kernels.launch import cuda_obstacle
from bandrank_kernels.windowed_attention import AttentionPlan, plan_attention
from bandrank_kernels.windowed_attention.ops import sparse_pattern

GPU = torch.device("cuda", 0)
OBSTACLE = cuda_obstacle(GPU) if torch.cuda.is_available() else "torch sees no GPU"
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

ROWS = packed_rows([11, 0, 35, 1], [[60, 0, 17, 121], [5, 33], [300], [64, 1, 62]], shared=True)
# As in the emulation; tensor cores cut off where the CPU rounds.
BARS = {torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.float32: 3e-6}
GRADIENT_BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 6e-6}


def plan(window: int | None, dtype: torch.dtype, head_dim: int, *, exact: bool = False) -> AttentionPlan:
    """By the kernels, by name: nothing may take their place. exact: by the reference."""
    backend = "reference" if exact else "cuda"
    return plan_attention(ROWS, sparse_pattern(window), device=GPU, dtype=dtype, head_dim=head_dim, backend=backend)


def random_qkv(dtype: torch.dtype, head_dim: int) -> Tensor:
    """Of `ROWS`, in 3 heads."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS.num_rows, 3, 3, head_dim, generator=generator).to(GPU, dtype)


@pytest.mark.parametrize("window", [0, 4, 16, 17, 64, None])
@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("dtype", BARS)
def test_kernels_equal_the_reference(dtype: torch.dtype, head_dim: int, window: int | None) -> None:
    """Results and gradients in float64, on the same rounded inputs; a second run gives the same bits."""
    qkv = random_qkv(dtype, head_dim).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    found, again = (plan(window, dtype, head_dim).attend(qkv) for _ in range(2))
    right = plan(window, torch.float64, head_dim, exact=True).attend(exact)
    towards = right.detach().flip(0).to(dtype)
    gradient, gradient_again = (torch.autograd.grad(out, qkv, towards)[0] for out in (found, again))
    (right_gradient,) = torch.autograd.grad(right, exact, towards.double())

    assert torch.equal(found, again)
    assert torch.equal(gradient, gradient_again)
    assert (found.double() - right).norm() <= BARS[dtype] * right.norm()
    assert (gradient.double() - right_gradient).norm() <= GRADIENT_BARS[dtype] * right_gradient.norm()


@pytest.mark.parametrize("window", [4, 64])
def test_a_graph_replays_what_was_launched(window: int) -> None:
    """Captured after one launch, replayed twice on new numbers in the same place, with the same bits."""
    qkv = random_qkv(torch.float16, 32)
    planned = plan(window, torch.float16, 32)
    planned.attend(qkv)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = planned.attend(qkv)
    for _ in range(2):
        qkv.copy_(qkv.flip(0))
        graph.replay()
        assert torch.equal(captured, planned.attend(qkv))
