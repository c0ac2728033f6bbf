"""Stage 1: every kernel that is shipped, compiled and loaded as the service does it."""

import time
from collections.abc import Iterator
from functools import partial

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.records import Skipped
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_kernels.band_products import cuda as band_products
from bandrank_kernels.cuda.assembly import AssemblerNotFound, assemble
from bandrank_kernels.launch import Kernel, load
from bandrank_kernels.row_norms import cuda as row_norms
from bandrank_kernels.windowed_attention.cuda import ABSORBED, SHIPPED


def kernels() -> list[Kernel]:
    """All of them, those that every batch runs first."""
    attention = [variant.kernel for variant in SHIPPED] + [variant.kernel for variant in ABSORBED]
    bands = band_products.instances("tensor_core") + band_products.instances("simt")
    return attention + bands + row_norms.instances()


def cases(lab: Lab) -> Iterator[Case]:
    """One for each kernel."""
    for kernel in lab.few(kernels()):
        yield Case(kernel.expression, partial(compiled, lab, kernel))


def compiled(lab: Lab, kernel: Kernel) -> Facts:
    """Seconds; a fraction of one where cupy's cache has it. Dry: by NVRTC alone, to machine code for sm_90."""
    begun = time.perf_counter()
    if lab.dry:
        try:
            assemble(kernel.source, [kernel.expression], "sm_90")
        except AssemblerNotFound as error:
            raise Skipped(str(error)) from None
    else:
        load(kernel, lab.device)
    return {"compile_s": round(time.perf_counter() - begun, 3)}
