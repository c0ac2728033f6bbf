"""Kernels read rows that span more than 2 ** 32 numbers, which 32-bit indices cannot address."""

from tempfile import NamedTemporaryFile

import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.launches import emulate
from kernels.test_gradient_kernels import Layer
from support import absorbed
from support.bands import random_band, random_rows
from support.forward_kernels import AMPERE, TURING, attend, plan, random_qkv
from support.layouts import packed_rows
from support.norms import EPS, make_norm
from torch import Tensor

from bandrank_kernels.band_products import operators as band_products
from bandrank_kernels.row_norms import Addend
from bandrank_kernels.row_norms import cuda as row_norms

pytestmark = needs_compiler

ROWS = packed_rows([2], [[3, 2]], shared=True)  # 9 rows in all
STEP = 2**29  # numbers from one row to the next: 1 GiB of float16; up to 2 GiB are read in place


def apart(rows: Tensor) -> Tensor:
    """Returns a copy whose rows are `STEP` numbers apart, in a sparse file: no system gives out so much memory."""
    with NamedTemporaryFile() as file:
        size = STEP * (len(rows) - 1) + rows[0].numel()
        memory = torch.from_file(file.name, shared=True, size=size, dtype=rows.dtype)
    return memory.as_strided(rows.shape, (STEP, *rows.stride()[1:])).copy_(rows)


@pytest.mark.parametrize(("window", "capability"), [(4, AMPERE), (64, AMPERE), (4, TURING)])
def test_attention(window: int, capability: tuple[int, int]) -> None:
    planned, qkv = plan(ROWS, window, "float16", capability=capability), random_qkv(ROWS, "float16", 2, 32)
    near, far = (attend(planned, rows) for rows in (qkv, apart(torch.from_numpy(qkv)).numpy()))

    assert (far.out == near.out).all()
    assert (far.lse == near.lse).all()


@pytest.mark.parametrize("capability", [AMPERE, TURING])
def test_the_last_layer(capability: tuple[int, int]) -> None:
    sizes = absorbed.Sizes("float16", 2, 64, capability)
    query, rows = sizes.inputs(ROWS)
    near, far = (absorbed.attend_cls(sizes.plan(ROWS), query, each, sizes.scale) for each in (rows, apart(rows)))

    assert torch.equal(far, near)


def test_gradients() -> None:
    layer = Layer(ROWS, 1, "float16", num_heads=1, head_dim=64)
    near = layer.run()
    layer.qkv = apart(layer.qkv)

    assert torch.equal(layer.run(), near)


def test_norms() -> None:
    x, residual = (random_rows(9, 64, dtype=torch.float16, seed=seed) for seed in (0, 1))

    def norm(rows: Tensor) -> Tensor:
        out = torch.empty_like(residual)
        emulate(row_norms.plan([Addend(rows), Addend(residual)], *make_norm(64, torch.float16), EPS, out))
        return out

    assert torch.equal(norm(apart(x)), norm(x))


def test_band_products() -> None:
    """The rows that lie far apart belong to one matrix, or each is a matrix of its own."""
    rows, band = random_rows(9, 32, dtype=torch.float16), random_band(9, length=1, window=1, dtype=torch.float16)

    def products(rows: Tensor, band: Tensor) -> tuple[Tensor, Tensor]:
        scores, sums = torch.empty_like(band), torch.empty(rows.shape, dtype=rows.dtype)
        emulate(band_products.plan("band_qk", rows, rows, scores))
        emulate(band_products.plan("band_pv", rows, rows, band, sums=sums))
        return scores, sums

    for matrices, weights in ((rows[None], band.view(1, 9, 3).nan_to_num(0)), (rows[:, None], band)):
        far = apart(rows).view(matrices.shape)
        assert all(map(torch.equal, products(far, weights), products(matrices, weights)))
