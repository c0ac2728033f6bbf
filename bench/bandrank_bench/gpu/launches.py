"""A program of a few launches and nothing else, for tools that watch it: python -m bandrank_bench.gpu.launches NAME ..."""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.layer_parts import norm_rows, plan_of
from bandrank_bench.gpu.shape import Shape
from bandrank_kernels import choose_backend
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk
from bandrank_kernels.windowed_attention.ops import attend

Launch = Callable[[Lab], object]


def attention(lab: Lab, *, window: int) -> None:
    """Forward and backward of a few candidates, more than one tile of each kernel."""
    shape = Shape(70, window, 32, num_heads=2, num_candidates=3, query_tokens=5)
    num_rows = shape.rows().num_rows
    qkv = _randn(lab, num_rows, 3, 2, 32).requires_grad_()
    out, _ = attend(qkv, shape.rows(), window)
    torch.autograd.grad(out, qkv, _randn(lab, num_rows, 2, 32))


def bands(lab: Lab, *, window: int) -> None:
    """The three products."""
    query, key = (_randn(lab, 2, 70, 32) for _ in range(2))
    band = band_qk(query, key, window, backend=lab.backend)
    band_pv(band, key, backend=lab.backend)
    band_ptv(band, key, backend=lab.backend)


def last_layer(lab: Lab) -> None:
    """[CLS] of a few candidates, each of more than one tile."""
    shape = Shape(300, 4, 32, num_heads=2, num_candidates=3, query_tokens=5)
    query, rows = _randn(lab, 3, 2, shape.hidden), _randn(lab, shape.rows().num_rows, shape.hidden)
    plan_of(lab, shape).attend_cls(query, rows, shape.head_dim**-0.5)


def norms(lab: Lab) -> None:
    """Of three rows and of two, in more than one block, the last part of a row not whole."""
    numbers = torch.arange(70).flip(0).to(lab.device)
    sizes = (70, 264), (70, 264), (264,), (264,)
    norm_rows(lab.backend, numbers, *(_randn(lab, *size) for size in sizes))


def profiled(lab: Lab, *, shape: Shape) -> None:
    """One forward launch."""
    rows = shape.rows()
    attend(lab.randn(rows.num_rows, 3, shape.num_heads, shape.head_dim), rows, shape.window)


def _randn(lab: Lab, *shape: int) -> Tensor:
    """Drawn on the host: nothing but our kernels is to run on the card."""
    return torch.randn(shape).to(lab.device, lab.dtype)


SMALL: dict[str, Launch] = {
    **{f"attention w={window}": partial(attention, window=window) for window in (4, 20)},
    **{f"bands w={window}": partial(bands, window=window) for window in (4, 20)},
    "last layer": last_layer,
    "norms": norms,
}
PROFILED: dict[str, Launch] = {
    str(shape): partial(profiled, shape=shape) for shape in (Shape(164, 4, 32), Shape(4086, 4, 32), Shape(4086, 64, 32))
}


def main(names: list[str], lab: Lab) -> None:
    """Makes the launches named, one after the other. Raises BackendUnavailable rather than watch something else."""
    choose_backend(lab.backend, lab.device)
    for name in names:
        (SMALL | PROFILED)[name](lab)
        lab.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:], Lab(dry=False))
