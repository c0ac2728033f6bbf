"""Band products as machine code: every architecture takes them, and none spills registers to memory."""

import pytest
from support.band_registers import ARCHITECTURES, count, read_table

from bandrank_kernels.band_products import cuda
from bandrank_kernels.cuda.assembly import AssemblerNotFound, nvrtc_version

# A few of each family; the table has them all.
SAMPLE: dict[cuda.Family, list[str]] = {
    "simt": ["band_qk_simt<float, 4>", "band_sums_simt<__half, 1, true>"],
    "tensor_core": ["band_qk_mma<__half, 1>", "band_sums_mma<__nv_bfloat16, 2, false>"],
}
COMPILER = "13.0"  # the table's


def test_the_table_has_every_kernel_and_no_spills() -> None:
    """On every architecture that a family is for."""
    table = read_table()
    for family, architectures in ARCHITECTURES.items():
        for kernel in cuda.instances(family):
            cells = table.pop(kernel.expression)
            assert list(cells) == architectures
            assert all(cell.isdigit() for cell in cells.values()), kernel

    assert table == {}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_kernels_assemble_as_the_table_says(family: cuda.Family) -> None:
    """For the oldest architecture of the family, for one of the middle and for the newest, by the table's compiler;
    by another one without many spills.
    """
    architectures = ARCHITECTURES[family]
    chosen = [architectures[0], "sm_90", architectures[-1]]
    try:
        counts = count(family, chosen, SAMPLE[family])
    except AssemblerNotFound as reason:
        pytest.skip(str(reason))
    table = read_table()
    for expression, by_architecture in counts.items():
        for architecture, assembly in by_architecture.items():
            if nvrtc_version() == COMPILER:
                assert assembly.spilled_bytes == 0
                assert assembly.registers == int(table[expression][architecture])
            else:
                assert assembly.spilled_bytes < 100
