"""The instruction sets that the CPU kernels are built for."""

import functools
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variant:
    """A build of the kernels.

    name: of its file.  needs: what a processor must have, as Linux names it.  options: for the compiler.  machine: the
    kind of processor, as `platform.machine` names it.
    """

    name: str
    needs: frozenset[str]
    options: tuple[str, ...]
    machine: str = "x86_64"


# All that the compiler may use, not just what the kernels use: a virtual machine may lack any of it.
X86_64_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
AVX2 = X86_64_V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
AMX = AVX512 | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"}
# Only AMD's processors have SSE4a. They multiply bfloat16 numbers twice as fast as float32 numbers, and Intel's do not
# without AMX.
AVX512_BF16 = AVX512 | {"avx512_bf16", "sse4a"}
# The best first.
VARIANTS = (
    Variant(
        "amx",
        AMX,
        (
            *("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
            "-mprefer-vector-width=512",
        ),
    ),
    Variant(
        "avx512_bf16",
        AVX512_BF16,
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-msse4a", "-mprefer-vector-width=512"),
    ),
    Variant("avx512_vnni", AVX512, ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512")),
    Variant("avx_vnni", AVX2 | {"avx_vnni"}, ("-march=x86-64-v3", "-mavxvnni")),
    Variant("avx2", AVX2, ("-march=x86-64-v3",)),
    Variant("dotprod", frozenset({"asimd", "asimddp"}), ("-march=armv8.2-a+dotprod",), "aarch64"),
)


def buildable_variants() -> tuple[Variant, ...]:
    """The variants for this kind of processor."""
    return tuple(variant for variant in VARIANTS if variant.machine == platform.machine())


@functools.cache
def usable_variants() -> tuple[Variant, ...]:
    """The variants that this processor runs, the best first; none if its features are unknown."""
    has = _processor_flags()
    return tuple(variant for variant in buildable_variants() if variant.needs <= has)


def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.split())
