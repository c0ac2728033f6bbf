"""Windowed attention on a GPU: the kernels that the CPU emulates, as cupy compiles and launches them."""

import pytest
import torch
from support.absorbed import Sizes, exact
from support.layouts import packed_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, capture, needs_gpu
from torch import Tensor

from bandrank_kernels.launch import launch
from bandrank_kernels.windowed_attention import AttentionPlan, plan_attention
from bandrank_kernels.windowed_attention.ops import sparse_pattern

pytestmark = needs_gpu

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
    """On new numbers in the same place, with the same bits."""
    qkv, planned = random_qkv(torch.float16, 32), plan(window, torch.float16, 32)
    assert_replays(lambda: [planned.attend(qkv)], qkv)


@pytest.mark.parametrize("window", [4, 64])
def test_kernels_run_on_the_current_stream_and_wait_for_nothing(window: int) -> None:
    """Behind what a side stream is busy with, while the host goes on; once a layer has made the scratch of a batch."""
    planned = plan(window, torch.float16, 32)
    assert_runs_on_the_current_stream(lambda late: [planned.attend(late)], random_qkv(torch.float16, 32))


@pytest.mark.parametrize(("num_heads", "hidden_size"), [(12, 384), (12, 768), (16, 1000), (2, 64)])
@pytest.mark.parametrize("dtype", BARS)
def test_the_last_layer_equals_the_reference(dtype: torch.dtype, num_heads: int, hidden_size: int) -> None:
    """In float64, on the same rounded inputs, for [CLS] alone; a second run gives the same bits."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(ROWS.num_candidates, num_heads, hidden_size, generator=generator).to(GPU, dtype)
    rows = torch.randn(ROWS.num_rows, hidden_size, generator=generator).to(GPU, dtype)
    scale = 2 / hidden_size**0.5
    planned = plan(4, dtype, 32)
    found, again = (planned.attend_cls(query, rows, scale) for _ in range(2))
    right = plan(4, torch.float64, 32, exact=True).attend_cls(query.double(), rows.double(), scale)

    assert torch.equal(found, again)
    assert (found.double() - right).norm() <= BARS[dtype] * right.norm()


def test_one_graph_of_the_last_layer_serves_batches_of_other_lengths() -> None:
    """Captured for a table of fixed size, which is filled anew."""
    sizes = Sizes("float16", 12, 384)
    batches = [ROWS, packed_rows([3], [[700, 0]], shared=True), packed_rows([9, 2], [[1] * 4, [200]], shared=True)]
    plans = [sizes.plan(rows, capacity=20) for rows in batches]
    query, rows = (tensor.to(GPU) for tensor in sizes.inputs(ROWS))
    rows = torch.cat([rows, rows])
    out, tiles = torch.empty_like(query), torch.from_numpy(plans[0].tiles).to(GPU)
    partials = torch.empty(plans[0].num_partials, device=GPU)
    arrivals = torch.zeros(plans[0].num_arrivals, dtype=torch.int32, device=GPU)

    def attend() -> list[Tensor]:
        scratch = {"tiles": tiles, "partials": partials, "arrivals": arrivals}
        launch(plans[0].launch(query, rows, sizes.scale, out=out, **scratch), GPU)
        return [out]

    _, graph = capture(attend)
    for batch, planned in zip(batches, plans, strict=True):
        tiles.copy_(torch.from_numpy(planned.tiles))
        graph.replay()
        count = batch.num_candidates
        right = exact(query[:count].cpu(), rows.cpu(), sizes.scale, batch)
        assert (out[:count].cpu().double() - right).norm() <= BARS[torch.float16] * right.norm()
