"""Registers and spilled bytes of every CUDA kernel on every architecture, assembled here without a GPU.

    python -m bandrank_bench registers

A change that costs registers shows as a difference in that file; tests/kernels/test_assembly.py says when it is stale.
"""

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from bandrank_kernels.band_products.operators import variants as band_products
from bandrank_kernels.cuda.assembly import Assembly, assemble, nvrtc_version
from bandrank_kernels.launch import Kernel
from bandrank_kernels.pooled_scores import cuda as pooled_scores
from bandrank_kernels.row_norms import cuda as row_norms
from bandrank_kernels.windowed_attention.cuda.absorbed import ABSORBED
from bandrank_kernels.windowed_attention.cuda.variants import SHIPPED

TENSOR_CORE_ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
ALL_ARCHS = ("sm_75", *TENSOR_CORE_ARCHS)


@dataclass(frozen=True)
class Family:
    """Kernels of one source, and the architectures that they ship for."""

    file: str
    kernels: tuple[Kernel, ...]
    archs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of the source without its comments, which cost no registers."""
        code = "\n".join(re.sub(r"\s*//.*", "", line) for line in self.kernels[0].source.splitlines())
        return sha256(code.encode()).hexdigest()[:16]


def _families() -> Iterator[Family]:
    attention = [(variant.file, variant.kernel) for variant in SHIPPED]
    attention += [(variant.file, variant.kernel) for variant in ABSORBED]
    for file, variants in groupby(attention, key=lambda variant: variant[0]):
        archs = TENSOR_CORE_ARCHS if file in {"narrow.cuh", "wide.cuh", "absorbed_mma.cuh"} else ALL_ARCHS
        yield Family(file, tuple(kernel for _, kernel in variants), archs)
    yield Family("band_products/band.cu", tuple(band_products().values()), TENSOR_CORE_ARCHS)
    yield Family(pooled_scores.FILE, tuple(pooled_scores.instances()), TENSOR_CORE_ARCHS)
    yield Family(row_norms.FILE, tuple(row_norms.instances()), ALL_ARCHS)


FAMILIES = tuple(_families())


def measure(job: tuple[Sequence[Kernel], str]) -> dict[str, Assembly]:
    """Assembles kernels of one source for one architecture; returns them by name."""
    kernels, arch = job
    return assemble(kernels[0].source, [kernel.expression for kernel in kernels], arch)


def digests() -> dict[str, str]:
    """The digests of the sources of the table."""
    return {family.file: family.digest for family in FAMILIES}


def table() -> Mapping[str, Mapping[str, object]]:
    """By kernel, the registers and, if any, the spilled bytes on each of ALL_ARCHS; None where it does not ship."""
    jobs = [(family.kernels, arch) for family in FAMILIES for arch in family.archs]
    rows: dict[str, dict[str, int | list[int]]] = {
        kernel.expression: {} for family in FAMILIES for kernel in family.kernels
    }
    # Processes, because NVRTC compiles one program at a time; spawned, because threads do not survive a fork.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for (_, arch), measured in zip(jobs, pool.map(measure, jobs), strict=True):
            for name, used in measured.items():
                rows[name][arch] = entry(used)
    kernels = {name: [row.get(arch) for arch in ALL_ARCHS] for name, row in rows.items()}
    return {"compiler": {"nvrtc": nvrtc_version()}, "sources": digests(), "kernels": kernels}


def entry(used: Assembly) -> int | list[int]:
    """A cell of the table: registers, or [registers, spilled bytes] if any are spilled."""
    return [used.registers, used.spilled_bytes] if used.spilled_bytes else used.registers


def as_text(measured: Mapping[str, Mapping[str, object]]) -> str:
    """JSON with one line per kernel."""
    parts = []
    for name, rows in measured.items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Assembles everything, which takes minutes, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kernels/results/registers.json"))
    out: Path = parser.parse_args(arguments).out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_text(table()), encoding="utf-8")
    return 0
