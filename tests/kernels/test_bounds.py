"""Runs all CUDA kernels under sanitizers, in one process, which takes longer to start than to run them."""

import torch
from emulation.compiled import needs_compiler, run_sanitized
from emulation.launches import emulate, prepare
from kernels.test_forward_launch import PLANS, is_right, run
from kernels.test_gradient_kernels import SMALL, Layer
from support import absorbed
from support.bands import random_band, random_rows
from support.layouts import packed_rows
from support.norms import EPS, KINDS, make_addends, make_norm
from support.pooled import make_head

from bandrank_kernels.band_products import operators as band_products
from bandrank_kernels.cuda import read_source
from bandrank_kernels.launch import Kernel, Launch
from bandrank_kernels.pooled_scores import cuda as pooled_scores
from bandrank_kernels.row_norms import cuda as row_norms
from bandrank_kernels.windowed_attention.cuda.variants import GRADIENT_PARTS, Gradient


def attention() -> None:
    """Runs the forward and backward kernels, all from one compilation."""
    gradients = [Gradient("float16", 32, part) for part in GRADIENT_PARTS]
    variants = [*(plan.variant for plan in PLANS.values()), *gradients]
    source = read_source(*dict.fromkeys(file for variant in variants for file in variant.files))
    kernels = [Kernel(source, variant.name_expression) for variant in variants]
    prepare(*kernels, sanitize=True)
    layer = Layer(SMALL, 4, "float16", num_heads=2, head_dim=32)

    for plan, kernel in zip(PLANS.values(), kernels[: len(PLANS)], strict=True):
        assert is_right(*run(plan, kernel=kernel)), kernel
    assert layer.is_right(layer.run(kernels=(kernels[-2], kernels[-1])))


def last_layer() -> None:
    """Runs the absorbed last layer on rows that end where their memory ends, with some tiles unused."""
    rows = packed_rows((3, 0), ((0, 1, 270), (17,)), shared=True)
    both = [absorbed.Sizes("float16", 5, 328), absorbed.Sizes("float16", 5, 328, (7, 5))]
    prepare(*(sizes.plan(rows).variant.kernel for sizes in both), sanitize=True)
    for sizes in both:
        absorbed.attend_cls(sizes.plan(rows, capacity=7), *sizes.inputs(rows), sizes.scale)


def bands() -> None:
    requests: list[Launch] = []
    for window, length in ((1, 17), (9, 65), (64, 3)):
        rows = random_rows(1, length, 32, dtype=torch.float16)
        band = random_band(1, length=length, window=window, dtype=torch.float16)
        requests.append(band_products.plan("band_qk", rows, rows, torch.empty_like(band)))
        requests.append(band_products.plan("band_pv", rows, rows, band, sums=torch.empty_like(rows)))
    _launch(requests)


def norms() -> None:
    """Runs the norms of sums on tables and rows that end where their memory ends."""
    dtype = torch.float16
    _launch(
        [
            row_norms.plan(
                make_addends(kind, num_rows, hidden_size, dtype),
                *make_norm(hidden_size, dtype),
                EPS,
                torch.empty(num_rows, hidden_size, dtype=dtype),
            )
            for kind in KINDS
            for num_rows, hidden_size in ((1, 264), (7, 384), (9, 512))
        ]
    )


def pooled() -> None:
    """Runs the scores of pooled rows whose last block has few rows."""
    dtype = torch.float16
    _launch(
        [
            pooled_scores.plan(
                random_rows(num_rows, inputs, dtype=dtype),
                *make_head(inputs, outputs, dtype),
                activation="tanh",
                out=torch.empty(num_rows),
            )
            for num_rows, inputs, outputs in ((1, 64, 32), (17, 96, 64))
        ]
    )


def _launch(requests: list[Launch]) -> None:
    prepare(*(request.kernel for request in requests), sanitize=True)
    for request in requests:
        emulate(request)


PARTS = (attention, last_layer, bands, norms, pooled)


def main() -> None:
    for part in PARTS:
        part()
        print(part.__name__, flush=True)


@needs_compiler
def test_no_access_is_out_of_bounds() -> None:
    """Every array has exactly the size that it must have."""
    ended = run_sanitized("from kernels.test_bounds import main; main()")

    assert (ended.stdout.split(), ended.stderr[-3000:]) == ([part.__name__ for part in PARTS], "")
