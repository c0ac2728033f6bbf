"""Band products on a GPU: the kernels of test_band_kernels.py as cupy compiles and launches them."""

import logging

import pytest
import torch
from support.bands import LENGTHS, WINDOWS, random_band, random_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from torch import Tensor

from bandrank_kernels import choose_backend, dispatch
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk

pytestmark = needs_gpu

# As on the CPU; tensor cores cut off where the CPU rounds.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 4e-3, torch.float32: 2e-6, torch.float64: 1e-14}


def products(query: Tensor, key: Tensor, band: Tensor) -> list[Tensor]:
    """All three by the CUDA kernels, requested by name, so that nothing replaces them."""
    window = band.shape[-1] // 2
    return [
        band_qk(query, key, window, backend="cuda"),
        band_pv(band, key, backend="cuda"),
        band_ptv(band, key, backend="cuda"),
    ]


def inputs(length: int, window: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and band, in batches."""
    query, key = (random_rows(3, 2, length, dim, dtype=dtype, seed=seed).to(GPU) for seed in (0, 1))
    return query, key, random_band(3, 2, length=length, window=window, dtype=dtype).to(GPU)


@pytest.mark.parametrize("window", [*WINDOWS, 300])
@pytest.mark.parametrize(
    ("dtype", "dim"),
    [
        (torch.float16, 32),
        (torch.bfloat16, 64),
        (torch.float16, 128),
        (torch.bfloat16, 40),
        (torch.float16, 5),
        (torch.float32, 32),
        (torch.float32, 33),
        (torch.float64, 16),
    ],
)
def test_kernels_equal_the_reference(dtype: torch.dtype, dim: int, window: int) -> None:
    """The reference runs in float64 on the same rounded inputs."""
    for length in (*LENGTHS, 1025):
        query, key, band = inputs(length, window, dim, dtype)
        exact = query.double(), key.double(), band.double()
        expected = (
            band_qk(exact[0], exact[1], window, backend="reference"),
            band_pv(exact[2], exact[1], backend="reference"),
            band_ptv(exact[2], exact[1], backend="reference"),
        )
        with poisoned():
            results = products(query, key, band)
        for actual, right in zip(results, expected, strict=True):
            assert actual.isfinite().all()
            assert (actual.double() - right).norm() <= TOLERANCE[dtype] * right.norm()


def test_gradients_are_difference_quotients() -> None:
    """The kernels for float64 give them."""
    query, key, band = (tensor.nan_to_num().requires_grad_() for tensor in inputs(5, 1, 3, torch.float64))

    assert torch.autograd.gradcheck(lambda query, key: band_qk(query, key, 1, backend="cuda"), (query, key))
    assert torch.autograd.gradcheck(lambda band, value: band_pv(band, value, backend="cuda"), (band, key))


def test_a_graph_replays_what_was_launched() -> None:
    """A replay on new numbers in the same memory gives the same bits."""
    query, key, band = inputs(130, 4, 32, torch.float16)
    assert_replays(lambda: products(query, key, band), query, band)


def test_kernels_run_on_the_current_stream_and_wait_for_nothing() -> None:
    """They wait for the work of a side stream while the host continues."""
    query, key, band = inputs(130, 4, 32, torch.float16)
    assert_runs_on_the_current_stream(lambda late: products(late, key, band), query)


def test_auto_is_cuda_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """It says so once."""
    dispatch._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, logger="bandrank_kernels"):
        assert {choose_backend("auto", GPU) for _ in range(2)} == {"cuda"}

    assert caplog.messages == ["CUDA kernels run"]
