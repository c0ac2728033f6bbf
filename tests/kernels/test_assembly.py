"""The kernels as machine code, without a GPU: all of them assemble, and what they take is on record."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bandrank_kernels.cuda.assembly import AssemblerNotFound, AssemblyError, assemble, nvrtc_version
from bandrank_kernels.windowed_attention.cuda import SHIPPED, Variant

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from registers import TENSOR_CORE_ARCHS, archs_of, digests, entry, measure  # noqa: E402  # found on the path just set

TABLE: dict[str, Any] = json.loads((ROOT / "kernels" / "results" / "registers.json").read_text(encoding="utf-8"))
STALE = "run `python benchmarks/registers.py --out kernels/results/registers.json` and look at the difference"


def nvrtc() -> str | None:
    """The version of NVRTC here, if there is one."""
    try:
        return nvrtc_version()
    except AssemblerNotFound:
        return None


needs_nvrtc = pytest.mark.skipif(
    nvrtc() is None, reason="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime to assemble"
)
# To assemble everything everywhere takes minutes: each file on three architectures, another variant each time.
FILES = ["narrow.cuh", "wide.cuh", "simt.cuh", "gradient.cuh"]
VARIANTS = {file: [variant for variant in SHIPPED if variant.file == file] for file in FILES}
SAMPLE = [
    pytest.param(VARIANTS[file][7 * index % len(VARIANTS[file])], arch, id=f"{file} {arch}")
    for file in FILES
    for index, arch in enumerate((archs_of(VARIANTS[file][0])[0], "sm_90", "sm_120"))
]


def test_the_record_is_of_these_kernels() -> None:
    """The table of registers was made from the sources as they are, of all variants on all their architectures."""
    assert TABLE["sources"] == digests(), STALE
    assert {name: list(row) for name, row in TABLE["kernels"].items()} == {
        variant.name_expression: list(archs_of(variant)) for variant in SHIPPED
    }, STALE


@needs_nvrtc
@pytest.mark.parametrize(("variant", "arch"), SAMPLE)
def test_a_kernel_assembles_as_recorded(variant: Variant, arch: str) -> None:
    """With as many registers and spilled bytes as the table says, where the compiler is the table's."""
    used = measure(([variant], arch))[variant]

    if TABLE["compiler"]["nvrtc"] == nvrtc():
        assert entry(used) == TABLE["kernels"][variant.name_expression][arch], STALE
    else:
        assert used.spilled_bytes < 100


def test_nothing_is_spilled_where_it_would_cost() -> None:
    """On sm_90 no kernel of narrow windows spills; elsewhere, and in the others, a few words."""
    for name, row in TABLE["kernels"].items():
        spilled = {arch: int(used.split(" + ")[1].split()[0]) if " + " in used else 0 for arch, used in row.items()}
        assert max(spilled.values()) <= 64, name
        if name.startswith("narrow_forward"):
            assert spilled["sm_90"] == 0, name


@needs_nvrtc
def test_the_compiler_is_quoted() -> None:
    """A source that does not compile raises with the compiler's words."""
    with pytest.raises(AssemblyError, match=r"(?s)sm_80.*identifier \"missing\" is undefined"):
        assemble("__global__ void broken() { missing(); }", ["broken"], TENSOR_CORE_ARCHS[0])
