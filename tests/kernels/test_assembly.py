"""All kernels assemble without a GPU, and take the registers that are on record."""

import json
from pathlib import Path
from typing import Any

import pytest

from bandrank_bench.registers import ALL_ARCHS, FAMILIES, digests, entry, measure
from bandrank_kernels.cuda.assembly import AssemblerNotFound, AssemblyError, assemble, nvrtc_version
from bandrank_kernels.launch import Kernel

ROOT = Path(__file__).resolve().parents[2]
TABLE: dict[str, Any] = json.loads((ROOT / "kernels" / "results" / "registers.json").read_text(encoding="utf-8"))
ROWS: dict[str, dict[str, int | list[int]]] = {
    name: {arch: used for arch, used in zip(ALL_ARCHS, row, strict=True) if used is not None}
    for name, row in TABLE["kernels"].items()
}
STALE = "run `python -m bandrank_bench registers` and look at the difference"


def nvrtc() -> str | None:
    try:
        return nvrtc_version()
    except AssemblerNotFound:
        return None


needs_nvrtc = pytest.mark.skipif(
    nvrtc() is None, reason="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime to assemble"
)
# Assembling everything for all architectures takes minutes: each file has three here, with another kernel for each.
SAMPLE = [
    pytest.param(family.kernels[7 * index % len(family.kernels)], arch, id=f"{family.file} {arch}")
    for family in FAMILIES
    for index, arch in enumerate((family.archs[0], "sm_90", "sm_120"))
]


def test_the_record_is_of_these_kernels() -> None:
    """The table of registers was made from these sources, and has all kernels on all their architectures."""
    assert TABLE["sources"] == digests(), STALE
    assert {name: list(row) for name, row in ROWS.items()} == {
        kernel.expression: list(family.archs) for family in FAMILIES for kernel in family.kernels
    }, STALE


@needs_nvrtc
@pytest.mark.parametrize(("kernel", "arch"), SAMPLE)
def test_a_kernel_assembles_as_recorded(kernel: Kernel, arch: str) -> None:
    """The kernel takes the registers and spilled bytes of the table, if that was made with this version of NVRTC."""
    used = measure(([kernel], arch))[kernel.expression]

    if TABLE["compiler"]["nvrtc"] == nvrtc():
        assert entry(used) == ROWS[kernel.expression][arch], STALE
    else:
        assert used.spilled_bytes < 100


def test_nothing_is_spilled_where_it_would_cost() -> None:
    """Kernels of narrow windows on sm_90, norms and band products spill nothing; others spill a few words."""
    for name, row in ROWS.items():
        spilled = {arch: used[1] if isinstance(used, list) else 0 for arch, used in row.items()}
        assert max(spilled.values()) <= 64, name
        if name.startswith("narrow_forward"):
            assert spilled["sm_90"] == 0, name
        if name.startswith(("norm_of_sum", "band_")):
            assert not any(spilled.values()), name


@needs_nvrtc
def test_the_compiler_is_quoted() -> None:
    with pytest.raises(AssemblyError, match=r"(?s)sm_80.*identifier \"missing\" is undefined"):
        assemble("__global__ void broken() { missing(); }", ["broken"], "sm_80")
