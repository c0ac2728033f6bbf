"""`bandrank models`: lists the families of models that load, with popular examples."""

import argparse
import sys
from collections.abc import Sequence

from bandrank.models.known import KNOWN_FAMILIES, KnownModel
from bandrank.models.shipped import names


def print_models(arguments: Sequence[str]) -> int:
    """Prints the table and returns 0. Exits with 2 for arguments that cannot be used."""
    parser = argparse.ArgumentParser(prog="bandrank models", description="Prints the families of models that load.")
    parser.add_argument("--markdown", action="store_true", help="as in docs/models.md")
    options = parser.parse_args(arguments)
    sys.stdout.write(markdown() if options.markdown else text())
    return 0


def text() -> str:
    """The families, each with a line for each of its models."""
    models = [model for family in KNOWN_FAMILIES for model in family.models]
    widths = [max(map(len, column)) for column in zip(*map(_cells, models), strict=True)]
    lines = [f"shipped: {', '.join(names())}"]
    for family in KNOWN_FAMILIES:
        lines += ["", f"{family.name} (model_type {', '.join(family.model_types)}): {family.special}"]
        for model in family.models:
            padded = [cell.ljust(width) for cell, width in zip(_cells(model), widths, strict=True)]
            lines.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join([*lines, ""])


def markdown() -> str:
    """The families as a Markdown table, with a row for each."""
    rows = ["| family | what is special | models |", "| --- | --- | --- |"]
    for family in KNOWN_FAMILIES:
        ids = ", ".join(f"`{model.id}`" for model in family.models)
        rows.append(f"| {family.name} | {family.special} | {ids} |")
    return "\n".join([*rows, ""])


def _cells(model: KnownModel) -> tuple[str, ...]:
    return model.id, model.role, model.parameters, f"{model.tokens:,} tokens", model.special
