"""Band products in plain torch, and the arguments that they refuse."""

from typing import Any

import pytest
import torch
from support.bands import dense, outside, random_band, random_rows
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bandrank_kernels import BackendUnavailable, dispatch
from bandrank_kernels.band_products import band_pv, band_qk, operators

EXACT = 1e-12


def close(actual: Tensor, expected: Tensor) -> None:
    """Asserts equality to rounding in float64, and in shape, dtype and NaN."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("length", [0, 1, 2, 5, 17, 40])
@pytest.mark.parametrize("window", [0, 1, 3, 9])
def test_products_are_those_of_dense_matrices(window: int, length: int) -> None:
    """A band is the diagonals of a matrix; outside the sequence, `band_qk` gives 0 and `band_pv` reads nothing."""
    query, key = random_rows(length, 6), random_rows(length, 6, seed=1)
    scores, band = band_qk(query, key, window), random_band(length=length, window=window)
    near = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= window

    close(dense(scores), torch.where(near, query @ key.T, 0))
    assert (scores[outside(length, window)] == 0).all()
    close(band_pv(band, key), dense(band) @ key)


def test_strides_do_not_matter() -> None:
    rows = random_rows(2, 9, 3, 4).transpose(1, 2)
    shared = random_rows(2, 1, 9, 4, seed=2).expand(2, 3, 9, 4)
    band = random_band(2, 3, length=9, window=2).transpose(-1, -2).contiguous().transpose(-1, -2)

    close(band_qk(rows, shared, 2), band_qk(rows.contiguous(), shared.contiguous(), 2))
    close(band_pv(band, shared), band_pv(band.contiguous(), shared.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_made_in_more_than_16_bits(dtype: torch.dtype) -> None:
    """The error is that of rounding the result, whatever the number of terms."""
    query, key = random_rows(300, 64, dtype=dtype), random_rows(300, 64, dtype=dtype, seed=1)
    band = random_band(length=300, window=64, dtype=dtype)
    for actual, expected in (
        (band_qk(query, key, 64), band_qk(query.double(), key.double(), 64)),
        (band_pv(band, key), band_pv(band.double(), key.double())),
    ):
        assert actual.dtype == dtype
        assert (actual.double() - expected).norm() <= torch.finfo(dtype).eps / 2 * expected.norm()


def test_windowed_attention_is_that_of_a_dense_mask() -> None:
    """Scores outside the sequence are zeros, and must be masked before the softmax; gradients agree too."""
    leaves = [random_rows(2, 9, 4, seed=seed).requires_grad_() for seed in range(3)]
    query, key, value = leaves
    scores = (band_qk(query, key, 2) * 4**-0.5).masked_fill(outside(9, 2), -torch.inf)
    near = (torch.arange(9)[:, None] - torch.arange(9)).abs() <= 2
    actual = band_pv(scores.softmax(-1), value)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=near)
    towards = random_rows(2, 9, 4, seed=3)

    close(actual, expected)
    for mine, theirs in zip(
        torch.autograd.grad(actual, leaves, towards), torch.autograd.grad(expected, leaves, towards), strict=True
    ):
        close(mine, theirs)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((5,), (5,), "query and key must have at least 2 dimensions"),
        ((5, 4), (6, 4), r"query and key must agree in all dimensions but the last, got \(5, 4\) and \(6, 4\)"),
        ((2, 5, 4), (5, 4), "query and key must agree in all dimensions but the last"),
        ((5, 4), (5, 3), "query and key must have the same dim, got 4 and 3"),
    ],
)
def test_rows_that_do_not_fit_are_refused(left: tuple[int, ...], right: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        band_qk(torch.zeros(left), torch.zeros(right), 1)


def test_what_else_is_refused() -> None:
    rows = torch.zeros(5, 4)
    with pytest.raises(ValueError, match="window must be at least 0, got -1"):
        band_qk(rows, rows, -1)
    with pytest.raises(ValueError, match=r"one floating-point dtype, got torch\.float32 and torch\.float64"):
        band_qk(rows, rows.double(), 1)
    with pytest.raises(ValueError, match=r"one floating-point dtype, got torch\.int64"):
        band_qk(rows.long(), rows.long(), 1)
    with pytest.raises(ValueError, match=r"a band has 2 \* window \+ 1 columns, an odd number; got 4"):
        band_pv(rows, rows)
    with pytest.raises(ValueError, match="band and value must agree in all dimensions but the last"):
        band_pv(torch.zeros(6, 3), rows)
    with pytest.raises(BackendUnavailable, match=r"backend 'cuda' cannot run: .*the tensors are on cpu"):
        band_qk(rows, rows, 1, backend="cuda")


@pytest.mark.parametrize(
    ("dtype", "dim", "leaf", "reason"),
    [
        (torch.float16, 32, True, "the kernels have no gradient"),
        (torch.float32, 32, False, r"float16 or bfloat16 of 32 or 64 numbers, got torch\.float32 of 32"),
        (torch.bfloat16, 48, False, r"float16 or bfloat16 of 32 or 64 numbers, got torch\.bfloat16 of 48"),
    ],
)
def test_what_kernels_cannot_do_is_said(
    dtype: torch.dtype, dim: int, leaf: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test pretends that there is a GPU, so that the tensors alone stand in the way."""
    monkeypatch.setattr(dispatch, "cuda_obstacle", lambda _: None)
    rows: Any = torch.zeros(5, dim, dtype=dtype, requires_grad=leaf)
    with pytest.raises(BackendUnavailable, match=reason):
        band_qk(rows, rows, 1, backend="cuda")
    with pytest.raises(BackendUnavailable, match=reason):
        band_pv(torch.zeros(5, 3, dtype=dtype), rows, backend="cuda")
    assert {dims for _, _, dims in operators.variants()} == {32, 64}
