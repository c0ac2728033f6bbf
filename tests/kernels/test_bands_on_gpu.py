"""Band products on a GPU: the kernels of test_band_kernels.py as cupy compiles and launches them."""

import logging

import pytest
import torch
from support.bands import LENGTHS, WINDOWS, random_band, random_rows
from support.on_gpu import GPU, assert_replays, assert_runs_on_the_current_stream, needs_gpu, poisoned
from torch import Tensor

from bandrank_kernels import Backend, choose_backend, dispatch
from bandrank_kernels.band_products import band_pv, band_qk

pytestmark = needs_gpu

# Larger than on the CPU: tensor cores truncate where the CPU rounds.
TOLERANCE = {torch.float16: 6e-4, torch.bfloat16: 4e-3}


def products(query: Tensor, key: Tensor, band: Tensor, backend: Backend = "cuda") -> list[Tensor]:
    """Returns both band products by a backend that is requested by name, so that no fallback replaces it."""
    return [band_qk(query, key, band.shape[-1] // 2, backend=backend), band_pv(band, key, backend=backend)]


def inputs(length: int, window: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    query, key = (random_rows(3, 2, length, dim, dtype=dtype, seed=seed).to(GPU) for seed in (0, 1))
    return query, key, random_band(3, 2, length=length, window=window, dtype=dtype).to(GPU)


@pytest.mark.parametrize("window", [*WINDOWS, 300])
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_kernels_equal_plain_torch(dtype: torch.dtype, dim: int, window: int) -> None:
    for length in (*LENGTHS, 1025):
        query, key, band = inputs(length, window, dim, dtype)
        expected = products(query.double(), key.double(), band.double(), "vectorized")
        with poisoned():
            results = products(query, key, band)
        for actual, right in zip(results, expected, strict=True):
            assert actual.isfinite().all()
            assert (actual.double() - right).norm() <= TOLERANCE[dtype] * right.norm()


def test_a_graph_replays_what_was_launched_and_kernels_run_on_the_current_stream() -> None:
    query, key, band = inputs(130, 4, 32, torch.float16)
    assert_replays(lambda: products(query, key, band), query, band)
    assert_runs_on_the_current_stream(lambda late: products(late, key, band), query)


def test_auto_is_cuda_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    dispatch._log_choice.cache_clear()
    with caplog.at_level(logging.INFO, logger="bandrank_kernels"):
        assert {choose_backend("auto", GPU) for _ in range(2)} == {"cuda"}

    assert caplog.messages == ["CUDA kernels run"]
