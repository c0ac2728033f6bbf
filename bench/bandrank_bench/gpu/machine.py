"""Stage 0: what runs here, and how fast the card moves bytes and multiplies matrices today."""

import inspect
import platform
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bandrank_bench.gpu import tools
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stage import Case, Facts

PACKAGES = ("torch", "cupy-cuda13x", "numpy", "triton", "transformers")
CLOCKS = ("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu", "power.draw", "pstate")
COPY_NUMBERS = 2**31  # float16: 4 GiB, nothing of which a cache can hold
PRODUCT_SIZE = 8192


def cases(lab: Lab) -> Iterator[Case]:
    """The ceilings last: the clocks are those of a card at rest."""
    yield Case("versions", versions)
    yield Case("card", partial(card, lab))
    yield Case("features", features)
    yield Case("copy", partial(copy, lab))
    for dtype in (torch.float16, torch.bfloat16):
        yield Case(f"product {dtype}".replace("torch.", ""), partial(product, lab, dtype))


def versions() -> Facts:
    """Of what takes part."""
    cudnn: Any = torch.backends.cudnn  # torch leaves it bare
    found: Facts = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return {**found, "cudnn": cudnn.version(), **tools.ask_card("driver_version")}


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
        **tools.ask_card(*CLOCKS),
    }


def features() -> Facts:
    """What later stages can use."""
    cudnn: Any = torch.backends.cudnn
    try:
        varlen = str(inspect.signature(import_module("torch.nn.attention.varlen").varlen_attn))
    except (ImportError, AttributeError) as error:
        varlen = f"not there: {error}"
    return {
        "varlen_attn": varlen,
        "Stream.__cuda_stream__": hasattr(torch.cuda.Stream, "__cuda_stream__"),
        "cudnn attention": cudnn.is_available(),
        "flash attention": torch.backends.cuda.is_flash_attention_available(),
        **{tool: tools.find(tool) for tool in ("compute-sanitizer", "ncu")},
    }


def copy(lab: Lab) -> Facts:
    """Bytes read and written in a second, device to device."""
    source = lab.randn(1 << 20).repeat(1 if lab.dry else COPY_NUMBERS >> 20)
    target = torch.empty_like(source)
    seconds = lab.median_us(lambda: target.copy_(source)) / 1e6
    return {"bytes_per_s": 2 * source.nbytes / seconds}


def product(lab: Lab, dtype: torch.dtype) -> Facts:
    """Operations in a second of one large matrix product."""
    size = 64 if lab.dry else PRODUCT_SIZE
    left, right = (lab.randn(size, size, dtype=dtype, seed=seed) for seed in (0, 1))
    seconds = lab.median_us(lambda: left @ right) / 1e6
    return {"flops": 2 * size**3 / seconds}
