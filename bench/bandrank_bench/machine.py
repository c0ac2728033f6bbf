"""Describes the machine and the software of a benchmark, without which its numbers mean nothing."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from bandrank_bench.systems import NUM_THREADS, has_native_bf16

ISA = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_int8", "amx_bf16", "arm_bf16")
# The instructions that the CPU kernels choose by, the fastest first; by bfloat16's only on AMD's processors.
NAMES = {
    "amx_int8": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx2": "AVX2",
}
PACKAGES = ("bandrank", "torch", "transformers", "tokenizers", "sentence-transformers", "onnxruntime", "openvino")


def describe() -> dict[str, str]:
    """Returns facts as names and values, in the order to print them."""
    capabilities = torch.cpu.get_capabilities()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": f"{_cpu_name()}, {os.cpu_count()} logical CPUs, {NUM_THREADS} threads used",
        "instructions": " ".join(name for name in ISA if capabilities.get(name)) or "unknown",
        "native bfloat16": "yes" if has_native_bf16() else "no: bfloat16 is emulated and its times say so",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{_os_name()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {number}" for name in PACKAGES if (number := version_of(name))),
    }


def with_instructions(title: str, facts: Mapping[str, str]) -> str:
    """Adds to a page's title its machine's fastest instructions, in which pages differ. facts: as from `describe`."""
    had = set(facts.get("instructions", "").split())
    if not facts.get("CPU", "").startswith("AMD"):
        had.discard("avx512_bf16")
    return next((f"{title} with {name}" for flag, name in NAMES.items() if flag in had), title)


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    if "cpu family" not in fields:
        return fields.get("model name", platform.machine())
    # Cloud machines often hide the product's name; family, model and stepping identify the microarchitecture.
    numbers = f"family {fields['cpu family']}, model {fields['model']}, stepping {fields['stepping']}"
    return f"{fields.get('model name', platform.machine())} ({numbers})"


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return f"{platform.system()} {platform.release()}"


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
