"""CUDA kernels of the band products, run on the CPU from the launches that a GPU would get."""

import pytest
import torch
from emulation.compiled import SCHEDULES, Schedule, needs_compiler
from emulation.launches import emulate, prepare
from support.bands import LENGTHS, WINDOWS, outside, random_band, random_rows
from support.guarded import guarded
from torch import Tensor

from bandrank_kernels.band_products import band_pv, band_qk
from bandrank_kernels.band_products.operators import plan, variants

pytestmark = needs_compiler

KINDS = sorted({(dtype, dim) for _, dtype, dim in variants()}, key=str)
# Half an ulp for the result, and a little for sums of up to 257 terms in float32.
TOLERANCE = {torch.float16: 4.5e-4, torch.bfloat16: 3.5e-3}


def check(query: Tensor, key: Tensor, band: Tensor, schedule: Schedule = "depth first", *, seed: int = 0) -> None:
    """Asserts that both products equal float64's on the same rounded inputs, written in full and nowhere else."""
    window = band.shape[-1] // 2
    with guarded(*band.shape, dtype=band.dtype) as scores, guarded(*key.shape, dtype=key.dtype) as sums:
        emulate(plan("band_qk", query, key, scores), schedule, seed)
        emulate(plan("band_pv", key, key, band, sums=sums), schedule, seed)
    for actual, right in (
        (scores, band_qk(query.double(), key.double(), window)),
        (sums, band_pv(band.double(), key.double())),
    ):
        assert actual.isfinite().all()
        assert (actual.double() - right).norm() <= TOLERANCE[actual.dtype] * right.norm()
    assert (scores[..., outside(band.shape[-2], window)] == 0).all()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare(*variants().values())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("dtype", "dim"), KINDS)
def test_kernels_equal_plain_torch(dtype: torch.dtype, dim: int, window: int, schedule: Schedule) -> None:
    for length in LENGTHS[1:]:
        query, key = random_rows(2, length, dim, dtype=dtype), random_rows(2, length, dim, dtype=dtype, seed=1)
        check(query, key, random_band(2, length=length, window=window, dtype=dtype), schedule, seed=length)


@pytest.mark.parametrize(("length", "window"), [(300, 128), (4086, 4), (21, 300)])
def test_long_documents_and_wide_windows(length: int, window: int) -> None:
    """The widest window does not fit in shared memory, so its scores go straight to the output."""
    query, key = (random_rows(1, length, 32, dtype=torch.float16, seed=seed) for seed in (0, 1))
    check(query, key, random_band(1, length=length, window=window, dtype=torch.float16))


def test_views_give_the_results_of_copies() -> None:
    """Heads come from a fused projection, rows are expanded, or rows do not start at 16-byte addresses."""
    qkv = random_rows(2, 19, 3, 4, 32, dtype=torch.float16)
    query, key = qkv[:, :, 0].transpose(1, 2), qkv[:, :1, 1].transpose(1, 2).expand(2, 4, 19, 32)
    band = random_band(2, 4, length=19, window=3, dtype=torch.float16)
    check(query, key, band)
    check(query, torch.empty(key.numel() + 1, dtype=torch.float16)[1:].view(key.shape).copy_(key), band)


def test_one_stride_is_enough_or_there_is_a_copy() -> None:
    """A slice of each head's rows is read in place; heads that lie among the rows, and dims with gaps, are copied."""
    rows, band = torch.zeros(2, 3, 9, 32).half(), torch.zeros(2, 3, 5, 3).half()

    def held(matrices: Tensor) -> list[int]:
        return [tensor.data_ptr() for tensor in plan("band_qk", matrices, matrices, band).holds]

    part, among = rows[:, :, 4:], torch.zeros(2, 5, 3, 32).half().transpose(1, 2)
    gaps = torch.zeros(2, 3, 5, 64).half()[..., ::2]
    assert held(part)[:2] == [part.data_ptr()] * 2
    assert among.data_ptr() not in held(among)
    assert gaps.data_ptr() not in held(gaps)
