"""A program of a few launches and nothing else, for tools that watch it: python -m gpu_check.launches NAME ..."""

import sys
from collections.abc import Callable

import torch

from bandrank_kernels import choose_backend
from bandrank_kernels.band_products import band_ptv, band_pv, band_qk
from bandrank_kernels.windowed_attention.ops import attend
from gpu_check.lab import Lab
from gpu_check.shape import Shape

SMALL = tuple(f"{part} w={window}" for part in ("attention", "bands") for window in (4, 20))
PROFILED = {str(shape): shape for shape in (Shape(164, 4, 32), Shape(4086, 4, 32), Shape(4086, 64, 32))}


def attention(lab: Lab, window: int) -> None:
    """Forward and backward of a few candidates, more than one tile of each kernel."""
    shape = Shape(70, window, 32, num_heads=2, num_candidates=3, query_tokens=5)
    num_rows = shape.rows().num_rows
    # Drawn on the host: nothing but our kernels is to run on the card.
    qkv = torch.randn(num_rows, 3, 2, 32).to(lab.device, lab.dtype).requires_grad_()
    out, _ = attend(qkv, shape.rows(), window)
    torch.autograd.grad(out, qkv, torch.randn(num_rows, 2, 32).to(lab.device, lab.dtype))


def bands(lab: Lab, window: int) -> None:
    """The three products."""
    query, key = (torch.randn(2, 70, 32).to(lab.device, lab.dtype) for _ in range(2))
    band = band_qk(query, key, window, backend=lab.backend)
    band_pv(band, key, backend=lab.backend)
    band_ptv(band, key, backend=lab.backend)


def profiled(lab: Lab, shape: Shape) -> None:
    """One forward launch."""
    rows = shape.rows()
    attend(lab.randn(rows.num_rows, 3, shape.num_heads, shape.head_dim), rows, shape.window)


def main(names: list[str], lab: Lab) -> None:
    """Makes the launches named, one after the other. Raises BackendUnavailable rather than watch something else."""
    choose_backend(lab.backend, lab.device)
    small: dict[str, Callable[[Lab, int], None]] = {"attention": attention, "bands": bands}
    for name in names:
        if name in PROFILED:
            profiled(lab, PROFILED[name])
        else:
            part, _, window = name.partition(" w=")
            small[part](lab, int(window))
        lab.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:], Lab(dry=False))
