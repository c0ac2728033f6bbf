"""Band products: what they are, on every backend that runs here."""

import logging

import pytest
import torch
from support.bands import dense, outside, random_band, random_rows
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bandrank_kernels import Backend, BackendUnavailable, dispatch
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk, reference

BACKENDS: list[Backend] = ["vectorized"]  # plain torch has one form, which "reference" names too
EXACT = 1e-12


def close(actual: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    """Equal to an absolute tolerance, shape, dtype and NaN too."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [0, 1, 2, 5, 17, 40])
@pytest.mark.parametrize("window", [0, 1, 3, 9])
def test_products_are_those_of_dense_matrices(window: int, length: int, backend: Backend) -> None:
    """The band lies on the diagonals, zeros elsewhere; entries outside the sequence are 0, or ignored."""
    query, key = random_rows(length, 6), random_rows(length, 6, seed=1)
    scores, band = band_qk(query, key, window, backend=backend), random_band(length=length, window=window)
    near = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= window

    close(dense(scores), torch.where(near, query @ key.T, 0))
    assert (scores[outside(length, window)] == 0).all()
    close(band_pv(band, key, backend=backend), dense(band) @ key)
    close(band_ptv(band, key, backend=backend), dense(band).T @ key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_of_0_is_elementwise(backend: Backend) -> None:
    """A row sees itself alone."""
    query, key = random_rows(7, 4), random_rows(7, 4, seed=1)
    band = random_band(length=7, window=0)

    close(band_qk(query, key, 0, backend=backend), (query * key).sum(-1, keepdim=True))
    close(band_pv(band, key, backend=backend), band * key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_do_not_matter(backend: Backend) -> None:
    """Views of (batch, length, heads, dim), expanded and transposed tensors; results are contiguous."""
    rows = random_rows(2, 9, 3, 4).transpose(1, 2)
    shared = random_rows(2, 1, 9, 4, seed=2).expand(2, 3, 9, 4)
    band = random_band(2, 3, length=9, window=2).transpose(-1, -2).contiguous().transpose(-1, -2)
    actual = [
        band_qk(rows, shared, 2, backend=backend),
        band_pv(band, shared, backend=backend),
        band_ptv(band, rows, backend=backend),
    ]
    plain = rows.contiguous(), shared.contiguous(), band.contiguous()

    for one, expected in zip(
        actual, [band_qk(plain[0], plain[1], 2), band_pv(plain[2], plain[1]), band_ptv(plain[2], plain[0])], strict=True
    ):
        assert one.is_contiguous()
        close(one, expected)


@pytest.mark.parametrize("dim", [0, 3])
@pytest.mark.parametrize("batch", [(), (0,), (2, 0, 3)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_makes_nothing(backend: Backend, batch: tuple[int, ...], dim: int) -> None:
    """Empty batches and rows of no dims: scores of 0, and results of the right shape."""
    rows, band = random_rows(*batch, 4, dim), random_band(*batch, length=4, window=1)
    scores = band_qk(rows, rows, 1, backend=backend)

    assert scores.shape == (*batch, 4, 3)
    assert dim or not scores.any()
    assert band_pv(band, rows, backend=backend).shape == band_ptv(band, rows, backend=backend).shape == rows.shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_are_made_in_more_than_16_bits(dtype: torch.dtype) -> None:
    """The error is that of rounding the result, whatever the number of terms."""
    query, key = random_rows(300, 64, dtype=dtype), random_rows(300, 64, dtype=dtype, seed=1)
    band = random_band(length=300, window=64, dtype=dtype)
    for actual, expected in (
        (band_qk(query, key, 64), band_qk(query.double(), key.double(), 64)),
        (band_pv(band, key), band_pv(band.double(), key.double())),
        (band_ptv(band, key), band_ptv(band.double(), key.double())),
    ):
        assert actual.dtype == dtype
        assert (actual.double() - expected).norm() <= torch.finfo(dtype).eps / 2 * expected.norm()


class LargestTensor(TorchDispatchMode):
    """Sees every tensor that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # torch's own signature
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.untyped_storage().nbytes() // result.element_size())
        return result


@pytest.mark.parametrize("window", [0, 4, 64])
def test_memory_is_linear_in_the_band(window: int) -> None:
    """No (length, length) anywhere in the products, nor in their gradients, which are products too."""
    length, dim = 4096, 8
    query, key = random_rows(length, dim), random_rows(length, dim, seed=1)
    band = random_band(length=length, window=window)
    with LargestTensor() as largest:
        reference.band_qk(query, key, window)
        reference.band_pv(band, key)
        reference.band_ptv(band, key)

    assert 0 < largest.numbers <= length * max(2 * window + 1, dim)


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
    """The message says what came."""
    with pytest.raises(ValueError, match=message):
        band_qk(torch.zeros(left), torch.zeros(right), 1)


def test_what_else_is_refused() -> None:
    """A negative window, a band without a middle, dtypes that differ, whole numbers."""
    rows = torch.zeros(5, 4)
    with pytest.raises(ValueError, match="window must be at least 0, got -1"):
        band_qk(rows, rows, -1)
    with pytest.raises(ValueError, match=r"one floating-point dtype, got torch\.float32 and torch\.float64"):
        band_qk(rows, rows.double(), 1)
    with pytest.raises(ValueError, match=r"one floating-point dtype, got torch\.int64"):
        band_qk(rows.long(), rows.long(), 1)
    for product in (band_pv, band_ptv):
        with pytest.raises(ValueError, match=r"a band has 2 \* window \+ 1 columns, an odd number; got 4"):
            product(rows, rows)
        with pytest.raises(ValueError, match="band and value must agree in all dimensions but the last"):
            product(torch.zeros(6, 3), rows)


def test_backends_by_name() -> None:
    """A requested backend runs, or says why it cannot and what to do."""
    rows = torch.zeros(5, 4)
    with pytest.raises(BackendUnavailable, match=r"backend 'cuda' cannot run: .*the tensors are on cpu"):
        band_qk(rows, rows, 1, backend="cuda")
    with pytest.raises(ValueError, match="one of auto, cuda, native, vectorized, reference; got 'triton'"):
        band_pv(torch.zeros(5, 3), rows, backend="triton")  # type: ignore[arg-type]  # what a caller without a type checker can do


def test_auto_says_once_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    """It logs one line with the reason, and no other for the next layer."""
    dispatch._log_choice.cache_clear()
    rows = torch.zeros(5, 4)
    with caplog.at_level(logging.INFO, logger="bandrank_kernels"):
        for _ in range(3):
            band_qk(rows, rows, 1)

    assert len(caplog.messages) == 1
    assert "plain torch runs: " in caplog.messages[0]
    assert "the tensors are on cpu" in caplog.messages[0]
