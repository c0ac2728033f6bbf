"""Machine code of the band products: `python -m support.band_registers` writes the table that is checked in."""

from pathlib import Path

from bandrank_kernels.band_products import cuda
from bandrank_kernels.cuda.assembly import Assembly, assemble

TABLE = Path(cuda.__file__).parent / "registers.md"
ARCHITECTURES: dict[cuda.Family, list[str]] = {
    "simt": ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"],
    "tensor_core": ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"],
}

Counts = dict[str, dict[str, Assembly]]  # kernel, architecture


def count(family: cuda.Family, architectures: list[str], expressions: list[str]) -> Counts:
    """Assembles some kernels of a family for some architectures."""
    counts: Counts = {expression: {} for expression in expressions}
    for architecture in architectures:
        for expression, assembly in assemble(cuda.source(family), expressions, architecture).items():
            counts[expression][architecture] = assembly
    return counts


def render(family: cuda.Family, counts: Counts) -> str:
    """A table of registers, with spilled bytes behind a +."""
    architectures = ARCHITECTURES[family]
    lines = [f"| {family}.cu | {' | '.join(architectures)} |", "| --- |" + " --: |" * len(architectures)]
    for expression, by_architecture in counts.items():
        cells = [by_architecture[architecture] for architecture in architectures]
        shown = [f"{cell.registers}" + (f" + {cell.spilled_bytes} B" if cell.spilled_bytes else "") for cell in cells]
        lines.append(f"| `{expression}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def read_table() -> dict[str, dict[str, str]]:
    """The checked-in table: kernel, architecture, cell."""
    cells: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        first, *rest = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if first.endswith(".cu"):
            columns = rest
        elif first.startswith("band_"):
            cells[first] = dict(zip(columns, rest, strict=True))
    return cells


if __name__ == "__main__":
    tables = [
        render(family, count(family, architectures, [kernel.expression for kernel in cuda.instances(family)]))
        for family, architectures in ARCHITECTURES.items()
    ]
    heading = (
        "# Registers a thread, by NVRTC 13.0 with CuPy's options\n\nWritten by `python -m support.band_registers`."
    )
    TABLE.write_text("\n\n".join([heading, *tables]) + "\n", encoding="utf-8")
