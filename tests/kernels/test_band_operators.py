"""Band products as torch operators: gradients of any order, compilation, what torch asks of an operator."""

from collections.abc import Callable

import pytest
import torch
from support.bands import outside, random_rows
from torch import Tensor

from bandrank_kernels import Backend
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk

BACKENDS: list[Backend] = ["vectorized"]  # plain torch has one form, which "reference" names too
SHAPES = [(1, 0), (2, 3), (5, 1)]  # length, window


def leaf(*shape: int, seed: int) -> Tensor:
    """Random rows that require a gradient."""
    return random_rows(*shape, seed=seed).requires_grad_()


def products(window: int, length: int, backend: Backend) -> list[tuple[Callable[..., Tensor], Tensor, Tensor]]:
    """Each product as a function of two leaves."""
    rows, others, band = leaf(length, 2, seed=0), leaf(length, 2, seed=1), leaf(length, 2 * window + 1, seed=2)
    return [
        (lambda query, key: band_qk(query, key, window, backend=backend), rows, others),
        (lambda band, value: band_pv(band, value, backend=backend), band, rows),
        (lambda band, value: band_ptv(band, value, backend=backend), band, rows),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("length", "window"), SHAPES)
def test_gradients_are_difference_quotients(length: int, window: int, backend: Backend) -> None:
    """First and second derivatives are."""
    for product, left, right in products(window, length, backend):
        assert torch.autograd.gradcheck(product, (left, right))
        assert torch.autograd.gradgradcheck(product, (left, right))


def test_what_is_outside_gets_no_gradient() -> None:
    """Entries outside the sequence, NaN or not, neither get a gradient nor give one."""
    band = random_rows(6, 5).masked_fill_(outside(6, 2), torch.nan).requires_grad_()
    value = leaf(6, 3, seed=1)
    (band_pv(band, value) + band_ptv(band, value)).square().sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it bare

    assert band.grad is not None
    assert value.grad is not None
    assert (band.grad[outside(6, 2)] == 0).all()
    assert (band.grad[~outside(6, 2)] != 0).all()
    assert value.grad.isfinite().all()


@pytest.mark.parametrize("side", [0, 1])
def test_one_side_alone_may_want_a_gradient(side: int) -> None:
    """The other is a constant, and gets none."""
    for product, *sides in products(1, 4, "auto"):
        constant = sides[1 - side].detach()
        sides[1 - side] = constant
        product(*sides).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it bare

        assert sides[side].grad is not None
        assert constant.grad is None


@pytest.mark.parametrize("name", ["band_qk", "band_pv", "band_ptv"])
def test_operators_keep_their_promises_to_torch(name: str) -> None:
    """Schemas, fake tensors, autograd registration, dynamic shapes: `torch.library.opcheck`."""
    rows = random_rows(2, 6, 4).requires_grad_()
    view = random_rows(6, 2, 4, seed=1).transpose(0, 1).requires_grad_()
    band = random_rows(2, 6, 5, seed=2).requires_grad_()
    arguments = (rows, view, 2, "auto") if name == "band_qk" else (band, view, "auto")
    operator = getattr(torch.ops.bandrank, name).default

    assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}


def attention(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Windowed attention from the products, as the paper puts it together."""
    scores = band_qk(query, key, window) * query.shape[-1] ** -0.5
    positions = torch.arange(query.shape[-2])[:, None] + torch.arange(-window, window + 1)
    hidden = (positions < 0) | (positions >= query.shape[-2])
    return band_pv(scores.masked_fill(hidden, -torch.inf).softmax(-1), value)


def test_windowed_attention_is_that_of_a_dense_mask() -> None:
    """The zeros outside the sequence are no scores: they are masked before the softmax. Gradients too."""
    leaves = [leaf(2, 9, 4, seed=seed) for seed in range(3)]
    near = (torch.arange(9)[:, None] - torch.arange(9)).abs() <= 2
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=near)
    towards = random_rows(2, 9, 4, seed=3)
    actual = attention(leaves[0], leaves[1], leaves[2], 2)

    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for mine, theirs in zip(
        torch.autograd.grad(actual, leaves, towards), torch.autograd.grad(expected, leaves, towards), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_compiled_function_is_the_same_function() -> None:
    """It is one graph, forward and backward, for more than one length. Inductor, which takes long, is left out."""
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (9, 14):
        leaves = [leaf(2, length, 4, seed=seed) for seed in range(3)]
        plain, fast = attention(leaves[0], leaves[1], leaves[2], 2), compiled(leaves[0], leaves[1], leaves[2], 2)

        torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)
        for mine, theirs in zip(
            torch.autograd.grad(fast.sum(), leaves), torch.autograd.grad(plain.sum(), leaves), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
