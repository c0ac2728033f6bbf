"""Windowed attention on a GPU: the kernels that the CPU emulates, as cupy compiles and launches them."""

from functools import cache

import pytest
import torch
from support.absorbed import Sizes, exact
from support.layouts import packed_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, capture, needs_gpu, poisoned
from torch import Tensor

from bandrank_kernels import Backend
from bandrank_kernels.launch import launch
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, PackedRows, plan_attention

pytestmark = needs_gpu

# Several queries, some empty; the borders of windows and tiles; queries at the limits of the kernels for few of them;
# long candidates; passages; no candidate at all.
LAYOUTS = [
    packed_rows(queries, candidates, shared=True)
    for queries, candidates in (
        ([11, 0, 35, 1], [[60, 0, 17, 121], [5, 33], [300], [64, 1, 62]]),
        ([10], [[0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 30, 31, 32, 33, 59, 60, 61, 62, 63, 64, 65, 89, 90, 91]]),
        ([14, 15, 16, 31, 32, 63, 64, 70], [[33, 20]] * 8),
        ([5], [[300, 124, 125, 130, 400, 247, 248, 249]]),
        ([12, 9], [list(range(40, 120, 7)), list(range(30, 160, 13))]),
        ([3, 0], [[], []]),
    )
]
ROWS = LAYOUTS[0]
# Larger than in the emulation: tensor cores truncate where the CPU rounds.
BARS = {torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.float32: 3e-6}
GRADIENT_BARS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 6e-6}


def plan(
    window: int | None, dtype: torch.dtype, head_dim: int, *, rows: PackedRows = ROWS, backend: Backend = "cuda"
) -> AttentionPlan:
    """Returns a plan of the CUDA kernels, requested by name so that no fallback replaces them, or another backend's."""
    pattern = AttentionPattern.sparse(window)
    return plan_attention(rows, pattern, device=GPU, dtype=dtype, head_dim=head_dim, backend=backend)


@cache
def reference(layout: int, window: int | None) -> AttentionPlan:
    """Returns the reference plan of a layout, for any heads and dtype; cached, since its mask is built row by row."""
    return plan(window, torch.float64, 32, rows=LAYOUTS[layout], backend="reference")


def random_qkv(dtype: torch.dtype, head_dim: int, *, rows: PackedRows = ROWS, num_heads: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows.num_rows, 3, num_heads, head_dim, generator=generator).to(GPU, dtype)


def assert_right(rows: PackedRows, window: int | None, qkv: Tensor, truth: AttentionPlan) -> None:
    """Asserts that results and gradients equal float64's on the same rounded inputs, and that a second run repeats the
    bits.
    """
    dtype, head_dim = qkv.dtype, qkv.shape[-1]
    given, exact = qkv.requires_grad_(), qkv.detach().double().requires_grad_()
    right = truth.attend(exact)
    towards = right.detach().flip(0).to(dtype)
    with poisoned():
        actual, again = (plan(window, dtype, head_dim, rows=rows).attend(given) for _ in range(2))
        gradient, gradient_again = (torch.autograd.grad(out, given, towards)[0] for out in (actual, again))
    (right_gradient,) = torch.autograd.grad(right, exact, towards.double())

    assert torch.equal(actual, again)
    assert torch.equal(gradient, gradient_again)
    assert (actual.double() - right).norm() <= BARS[dtype] * right.norm()
    assert (gradient.double() - right_gradient).norm() <= GRADIENT_BARS[dtype] * right_gradient.norm()


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("window", [0, 1, 4, 9, 16, 17, 64, None])
@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("dtype", BARS)
def test_kernels_equal_the_reference(dtype: torch.dtype, head_dim: int, window: int | None, layout: int) -> None:
    rows = LAYOUTS[layout]
    assert_right(rows, window, random_qkv(dtype, head_dim, rows=rows), reference(layout, window))


@pytest.mark.parametrize("window", [4, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_many_times_what_a_card_runs_at_once(dtype: torch.dtype, window: int) -> None:
    """The truth comes from plain torch in float64: the reference's dense mask of so many rows would not fit."""
    rows = packed_rows([11], [[503] * 100], shared=True)
    truth = plan(window, torch.float64, 32, rows=rows, backend="vectorized")
    assert_right(rows, window, random_qkv(dtype, 32, rows=rows, num_heads=12), truth)


@pytest.mark.parametrize("window", [4, 64])
def test_a_graph_replays_what_was_launched_and_kernels_run_on_the_current_stream(window: int) -> None:
    """The kernels wait for a side stream while the host continues, once a first call has made the batch's scratch."""
    qkv, planned = random_qkv(torch.float16, 32), plan(window, torch.float16, 32)
    assert_replays(lambda: [planned.attend(qkv)], qkv)
    assert_runs_on_the_current_stream(lambda late: [planned.attend(late)], qkv)


@pytest.mark.parametrize(("num_heads", "hidden_size"), [(12, 384), (12, 768), (16, 1000), (2, 64)])
@pytest.mark.parametrize("dtype", BARS)
def test_the_last_layer_equals_the_reference(dtype: torch.dtype, num_heads: int, hidden_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(ROWS.num_candidates, num_heads, hidden_size, generator=generator).to(GPU, dtype)
    rows = torch.randn(ROWS.num_rows, hidden_size, generator=generator).to(GPU, dtype)
    scale = 2 / hidden_size**0.5
    planned = plan(4, dtype, 32)
    with poisoned():
        actual, again = (planned.attend_cls(query, rows, scale) for _ in range(2))
    right = plan(4, torch.float64, 32, backend="reference").attend_cls(query.double(), rows.double(), scale)

    assert torch.equal(actual, again)
    assert (actual.double() - right).norm() <= BARS[dtype] * right.norm()


def test_one_graph_of_the_last_layer_serves_batches_of_other_lengths() -> None:
    """The graph is captured over a tile table of fixed size, which each batch fills anew."""
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
