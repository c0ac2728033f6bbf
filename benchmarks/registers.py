"""Registers and spilled bytes of every CUDA kernel on every architecture, assembled here without a GPU.

    python benchmarks/registers.py --out kernels/results/registers.json

A change that costs registers shows as a difference in that file; tests/kernels/test_assembly.py says when it is stale.
"""

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from hashlib import sha256
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from bandrank_kernels.cuda.assembly import Assembly, assemble, nvrtc_version
from bandrank_kernels.windowed_attention.cuda import SHIPPED, Variant

TENSOR_CORE_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
SIMT_ARCHS = ("sm_75", *TENSOR_CORE_ARCHS)


def archs_of(variant: Variant) -> tuple[str, ...]:
    """The architectures that a variant is shipped for."""
    return SIMT_ARCHS if variant.file in {"simt.cuh", "gradient.cuh"} else TENSOR_CORE_ARCHS


def measure(job: tuple[Sequence[Variant], str]) -> dict[Variant, Assembly]:
    """Variants of one source on one architecture."""
    variants, arch = job
    used = assemble(variants[0].source, [variant.name_expression for variant in variants], arch)
    return {variant: used[variant.name_expression] for variant in variants}


def digests() -> dict[str, str]:
    """What the table was made of: kernel file to a hash of its whole source text."""
    return {variant.file: sha256(variant.source.encode()).hexdigest()[:16] for variant in SHIPPED}


def table() -> dict[str, object]:
    """Kernel to architecture to registers and, where there are spills, their bytes."""
    groups = [list(group) for _, group in groupby(SHIPPED, key=lambda variant: variant.file)]
    jobs = [(group, arch) for group in groups for arch in archs_of(group[0])]
    kernels: dict[str, dict[str, str]] = {variant.name_expression: {} for variant in SHIPPED}
    # Processes, since NVRTC compiles one program at a time; spawned, since threads do not survive a fork.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for (_, arch), measured in zip(jobs, pool.map(measure, jobs), strict=True):
            for variant, used in measured.items():
                kernels[variant.name_expression][arch] = entry(used)
    return {"compiler": {"nvrtc": nvrtc_version()}, "sources": digests(), "kernels": kernels}


def entry(used: Assembly) -> str:
    """A cell of the table."""
    return str(used.registers) + (f" + {used.spilled_bytes} bytes" if used.spilled_bytes else "")


def as_text(measured: dict[str, object]) -> str:
    """JSON with one line for each kernel."""
    parts = []
    for name, rows in measured.items():
        assert isinstance(rows, dict)
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
        parts.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_text(table()), encoding="utf-8")
