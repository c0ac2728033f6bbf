"""The versions and the card of a run, its speed at copies and matrix products, and whether all kernels compile."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch

from bandrank_bench.gpu import watched
from bandrank_bench.gpu.lab import Lab, Skipped
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.sweep import choices
from bandrank_bench.machine import version_of
from bandrank_bench.registers import FAMILIES
from bandrank_kernels.cuda.assembly import AssemblerNotFound, assemble
from bandrank_kernels.launch import Kernel, load

PACKAGES = ("torch", "cupy-cuda13x", "numpy", "triton", "transformers")
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu", "power.draw", "pstate")
COPY_NUMBERS = 2**31  # float16: 4 GiB, far beyond any cache
SMALL_COPY_NUMBERS = 6_250_000  # 12.5 MB read and as much written, like attention over 100 passages
PRODUCT_SIZE = 8192
MOST_COMPILERS = 12  # processes, each with its own CUDA context


def cases(lab: Lab) -> Iterator[Case]:
    """The cases, with the ceilings last, so that clocks are read on an idle card."""
    yield Case("versions", versions)
    yield Case("card", partial(card, lab))
    yield Case("copy", partial(copy, lab))
    yield Case("copy of 25 MB", partial(small_copy, lab))
    for dtype in (torch.float16, torch.bfloat16):
        yield Case(f"product {dtype}".replace("torch.", ""), partial(product, lab, dtype))


def versions() -> Facts:
    """Versions of Python, packages, CUDA, cuDNN and the driver."""
    cudnn: Any = torch.backends.cudnn  # torch leaves it bare
    packages = {package: version_of(package) for package in PACKAGES}
    shared = {"python": platform.python_version(), "cuda": torch.version.cuda, "cudnn": cudnn.version()}
    return {**shared, **packages, **watched.ask_card("driver_version")}


def card(lab: Lab) -> Facts:
    """Name, size and clocks."""
    if lab.dry:
        return {"name": "none, on the CPU"}
    properties = torch.cuda.get_device_properties(lab.device)
    return {
        "name": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory": properties.total_memory,
        "l2": getattr(properties, "L2_cache_size", None),
        **watched.ask_card(*CLOCKS),
    }


def copy(lab: Lab) -> Facts:
    """Bytes read and written per second, device to device."""
    source = lab.randn(1 << 20).repeat(1 if lab.dry else COPY_NUMBERS >> 20)
    target = torch.empty_like(source)
    seconds = lab.median_us(lambda: target.copy_(source)) / 1e6
    return {"bytes_per_s": 2 * source.nbytes / seconds}


def small_copy(lab: Lab) -> Facts:
    """The same with 25 MB per copy, where a launch's ends weigh more; the buffers together exceed the cache."""
    numbers, buffers = (SMALL_COPY_NUMBERS >> 10, 2) if lab.dry else (SMALL_COPY_NUMBERS, 16)
    sources = [lab.randn(numbers, seed=seed) for seed in range(buffers)]
    targets = [torch.empty_like(source) for source in sources]

    def run() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)

    seconds = lab.median_us(lab.capture(run)) / len(sources) / 1e6
    return {"bytes_per_s_of_25_mb": 2 * sources[0].nbytes / seconds}


def product(lab: Lab, dtype: torch.dtype) -> Facts:
    """Operations per second of a large matrix product."""
    size = 64 if lab.dry else PRODUCT_SIZE
    left, right = (lab.randn(size, size, dtype=dtype, seed=seed) for seed in (0, 1))
    seconds = lab.median_us(lambda: left @ right) / 1e6
    return {"flops": 2 * size**3 / seconds}


def compilations(lab: Lab) -> Iterator[Case]:
    """A case per shipped kernel, starting with those that every batch runs. The second case, behind one that is right
    even if there is no time for more, compiles all kernels and those of the sweep, in many processes into cupy's cache.
    """
    kernels = [kernel for family in FAMILIES for kernel in family.kernels][: 2 if lab.dry else None]
    shipped = {kernel.expression for kernel in kernels}
    tried = {variant.name_expression: variant.kernel for _, variant in choices()}
    more = [kernel for expression, kernel in tried.items() if expression not in shipped]
    each = [Case(kernel.expression, partial(compiled, lab, kernel)) for kernel in kernels]
    yield from (each[0], Case("all, side by side", partial(compiled_by_many, lab, kernels + more)), *each[1:])


def compiled_by_many(lab: Lab, kernels: Sequence[Kernel]) -> Facts:
    """Seconds until every kernel is in cupy's cache. NVRTC compiles only one program at a time per process."""
    started = time.perf_counter()
    compile_one = partial(compiled, lab)
    processes = min(MOST_COMPILERS, os.cpu_count() or 1)
    if lab.dry:
        for kernel in kernels[:1]:
            compile_one(kernel)
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for _ in pool.map(compile_one, kernels, chunksize=4):
                pass
    return {"kernels": len(kernels), "processes": processes, "all_compiled_s": round(time.perf_counter() - started, 3)}


def compiled(lab: Lab, kernel: Kernel) -> Facts:
    """Seconds to compile and load a kernel as the service does (under one if cupy's cache has it), and its resources by
    the driver. Dry: compiles it with NVRTC alone, to machine code for sm_90.
    """
    started = time.perf_counter()
    resources: Facts = {}
    if lab.dry:
        try:
            assemble(kernel.source, [kernel.expression], "sm_90")
        except AssemblerNotFound as error:
            raise Skipped(str(error)) from None
    else:
        resources = dict(load(kernel, lab.device).resources)
    return {"compile_s": round(time.perf_counter() - started, 3), **resources}
