"""CUDA kernels of the band products, run on the CPU from the launches that a GPU would get."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from emulation.compiled import SCHEDULES, Emulation, Schedule, needs_compiler
from emulation.launches import emulate, prepare
from support.bands import LENGTHS, WINDOWS, outside, random_band, random_rows
from torch import Tensor

from bandrank_kernels.band_products import band_qk, cuda, reference
from bandrank_kernels.launch import Launch, struct_of

pytestmark = needs_compiler

AMPERE, TURING = (8, 0), (7, 5)  # with and without tensor cores that these kernels can use
GUARD = 64  # numbers on either side of an output, which nobody may write

# dtype, dims, capability: which family runs.
VARIANTS = {
    "float32": (torch.float32, 32, AMPERE),
    "float32, few dims": (torch.float32, 7, AMPERE),
    "float64": (torch.float64, 40, AMPERE),
    "float16": (torch.float16, 32, AMPERE),
    "bfloat16": (torch.bfloat16, 64, AMPERE),
    "bfloat16, wide": (torch.bfloat16, 128, AMPERE),
    "float16 without tensor cores": (torch.float16, 40, TURING),
}
# Half an ulp for the result, and a little for sums of up to 257 terms in float32.
TOLERANCE = {torch.float16: 4.5e-4, torch.bfloat16: 3.5e-3, torch.float32: 1e-6, torch.float64: 1e-14}


def poisoned(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An output full of NaN, and the memory around it."""
    size = int(np.prod(shape))
    memory = torch.full((size + 2 * GUARD,), torch.nan, dtype=dtype)
    return memory[GUARD : GUARD + size].view(shape), memory


def check_output(actual: Tensor, memory: Tensor, expected: Tensor) -> None:
    """All of the output is written and right, and nothing else is written."""
    assert memory[:GUARD].isnan().all()
    assert memory[-GUARD:].isnan().all()
    assert actual.isfinite().all()
    error = (actual.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error <= TOLERANCE[actual.dtype]


def launches(
    query: Tensor, key: Tensor, band: Tensor, outputs: Sequence[Tensor], capability: tuple[int, int]
) -> list[Launch]:
    """The launches of the three products."""
    scores, sums, transposed_sums = outputs
    return [
        cuda.plan("band_qk", query, key, scores, capability=capability),
        cuda.plan("band_pv", key, key, band, sums=sums, capability=capability),
        cuda.plan("band_pv", key, key, cuda.transposed(band).contiguous(), sums=transposed_sums, capability=capability),
    ]


def check_products(
    query: Tensor, key: Tensor, band: Tensor, capability: tuple[int, int], schedule: Schedule, *, seed: int = 0
) -> None:
    """Compares all three with the reference in float64, on the same rounded inputs."""
    outputs = [poisoned(*shape, dtype=query.dtype) for shape in (band.shape, key.shape, key.shape)]
    for launch in launches(query, key, band, [output for output, _ in outputs], capability):
        emulate(launch, schedule, seed)
    exact = query.double(), key.double(), band.double()
    expected = (
        reference.band_qk(exact[0], exact[1], band.shape[-1] // 2),
        reference.band_pv(exact[2], exact[1]),
        reference.band_ptv(exact[2], exact[1]),
    )
    for (actual, memory), right in zip(outputs, expected, strict=True):
        check_output(actual, memory, right)
    scores = outputs[0][0]
    assert (scores[..., outside(band.shape[-2], band.shape[-1] // 2)] == 0).all()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compiles all variants, each family at once."""
    kernels = []
    for dtype, dim, capability in VARIANTS.values():
        query, key = (random_rows(1, 2, dim, dtype=dtype) for _ in range(2))
        band = random_band(1, length=2, window=1, dtype=dtype)
        kernels += [launch.kernel for launch in launches(query, key, band, (band, query, key), capability)]
    prepare(*kernels)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_kernels_equal_the_reference(variant: str, window: int, schedule: Schedule) -> None:
    """Whole outputs and nothing else are written, for every length, in whatever order lanes and blocks run."""
    dtype, dim, capability = VARIANTS[variant]
    for length in LENGTHS[1:]:
        query, key = random_rows(2, length, dim, dtype=dtype), random_rows(2, length, dim, dtype=dtype, seed=1)
        band = random_band(2, length=length, window=window, dtype=dtype)
        check_products(query, key, band, capability, schedule, seed=length)


@pytest.mark.parametrize(("length", "window"), [(124, 20), (300, 128), (4086, 4)])
@pytest.mark.parametrize("variant", ["float32", "float16", "bfloat16", "float16 without tensor cores"])
def test_long_documents_and_wide_windows(variant: str, length: int, window: int) -> None:
    """One head of each is right."""
    dtype, dim, capability = VARIANTS[variant]
    query, key = random_rows(1, length, dim, dtype=dtype), random_rows(1, length, dim, dtype=dtype, seed=1)
    band = random_band(1, length=length, window=window, dtype=dtype)
    check_products(query, key, band, capability, "depth first")


@pytest.mark.parametrize("variant", ["float32", "float16"])
def test_windows_too_wide_for_shared_memory(variant: str) -> None:
    """Their scores go straight to the output."""
    dtype, dim, capability = VARIANTS[variant]
    query, key = random_rows(2, 21, dim, dtype=dtype), random_rows(2, 21, dim, dtype=dtype, seed=1)
    check_products(query, key, random_band(2, length=21, window=300, dtype=dtype), capability, "depth first")


@pytest.mark.parametrize("variant", ["float32", "float16", "float16 without tensor cores"])
def test_views_give_the_results_of_copies(variant: str) -> None:
    """The results of heads of a fused projection, and of rows shared by expansion, are the same."""
    dtype, dim, capability = VARIANTS[variant]
    qkv = random_rows(2, 19, 3, 4, dim, dtype=dtype)
    query, key = qkv[:, :, 0].transpose(1, 2), qkv[:, :1, 1].transpose(1, 2).expand(2, 4, 19, dim)
    check_products(query, key, random_band(2, 4, length=19, window=3, dtype=dtype), capability, "depth first")


def test_one_stride_is_enough_or_there_is_a_copy() -> None:
    """A slice of the rows of each head is read in place; heads that lie among the rows, and dims with gaps, are not."""
    rows = torch.zeros(2, 3, 9, 32)
    band = torch.zeros(2, 3, 5, 3)

    def held(matrices: Tensor) -> list[int]:
        planned = cuda.plan("band_qk", matrices, matrices, band, capability=AMPERE)
        return [tensor.data_ptr() for tensor in planned.holds]

    part, among = rows[:, :, 4:], torch.zeros(2, 5, 3, 32).transpose(1, 2)
    gaps = torch.zeros(2, 3, 5, 64)[..., ::2]
    assert held(part)[:2] == [part.data_ptr()] * 2
    assert among.data_ptr() not in held(among)
    assert gaps.data_ptr() not in held(gaps)


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [
        (torch.zeros(4, 64, dtype=torch.float16), "band_qk_mma<__half, 2>"),
        (torch.zeros(4, 64, dtype=torch.bfloat16), "band_qk_mma<__nv_bfloat16, 2>"),
        (torch.zeros(4, 160, dtype=torch.float16), "band_qk_simt<__half>"),
        (torch.zeros(4, 48, dtype=torch.float16), "band_qk_simt<__half>"),
        (torch.zeros(4, 65, dtype=torch.float16)[:, 1:], "band_qk_simt<__half>"),
        (torch.zeros(4 * 64 + 1, dtype=torch.float16)[1:].view(4, 64), "band_qk_simt<__half>"),
        (torch.zeros(4, 64), "band_qk_simt<float>"),
        (torch.zeros(4, 6, dtype=torch.float64), "band_qk_simt<double>"),
    ],
)
def test_the_kernel_fits_the_rows(rows: Tensor, kernel: str) -> None:
    """Tensor cores for whole slices of 16-bit rows, where addresses and strides allow to read 16 bytes at a time."""
    band = torch.zeros(4, 3, dtype=rows.dtype)

    assert cuda.plan("band_qk", rows, rows, band, capability=AMPERE).kernel.expression == kernel
    assert "mma" not in cuda.plan("band_qk", rows, rows, band, capability=TURING).kernel.expression


def test_sequences_too_long_for_32_bits_are_refused() -> None:
    """They are refused before a launch. No memory is behind these tensors."""
    rows = torch.zeros(1, 8).expand(2**29 + 1, 8)
    with pytest.raises(ValueError, match="at most 536870912 rows and columns, got 536870913 x 1"):
        cuda.plan("band_qk", rows, rows, torch.zeros(1, 1).expand(2**29 + 1, 1), capability=AMPERE)


ECHO = """
__global__ void echo(const BandParams p, long long* out) {
  *out++ = reinterpret_cast<long long>(p.left); *out++ = reinterpret_cast<long long>(p.right);
  *out++ = reinterpret_cast<long long>(p.band); *out++ = reinterpret_cast<long long>(p.sums);
  *out++ = p.left_matrix; *out++ = p.left_row; *out++ = p.right_matrix; *out++ = p.right_row;
  *out++ = p.length; *out++ = p.window; *out++ = p.dim;
  *out++ = p.num_tiles; *out++ = p.num_parts; *out++ = p.staged; *out++ = sizeof p;
}
"""


def test_the_struct_is_laid_out_as_in_the_kernel() -> None:
    """Every field arrives, and its size is the compiler's."""
    values = dict(zip(cuda.PARAMS.names or (), [2**40, 2, 3, 4, -5, *range(6, 15)], strict=True))
    out = np.zeros(15, np.int64)
    Emulation(cuda.source("simt") + ECHO, ["echo"]).launch(
        "echo", grid=(1, 1, 1), block=(1, 1, 1), arguments=[struct_of(cuda.PARAMS, **values)[0], out]
    )

    assert out.tolist() == [2**40, 2, 3, 4, -5, *range(6, 15), cuda.PARAMS.itemsize]


def test_results_do_not_depend_on_the_order_of_execution() -> None:
    """The same bits under every schedule."""
    query, key = random_rows(3, 70, 32, dtype=torch.float16), random_rows(3, 70, 32, dtype=torch.float16, seed=1)
    actual = []
    for schedule in SCHEDULES:
        for seed in range(3):
            scores = band_qk(query, key, 4).fill_(torch.nan)
            emulate(cuda.plan("band_qk", query, key, scores, capability=AMPERE), schedule, seed)
            actual.append(scores)

    assert all(torch.equal(actual[0], other) for other in actual[1:])
