"""What a benchmark must show, beside what it shows."""

from collections.abc import Iterable
from dataclasses import dataclass

from bandrank_bench.output import table


@dataclass(frozen=True)
class Aim:
    """value: None if it was not measured.  at_least: the bound is the least good value, else the most."""

    text: str
    bound: float
    value: float | None
    unit: str = ""
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether it was measured and is good enough."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def aims_table(aims: Iterable[Aim], name: str = "aim", verdict: str = "reached") -> str:
    """A Markdown table with a row for each. name, verdict: the heads of its first and its last column."""
    return table([name, "bound", "measured", verdict], map(_row, aims))


def _row(aim: Aim) -> list[str]:
    bound = f"{'at least' if aim.at_least else 'at most'} {aim.bound:g} {aim.unit}".rstrip()
    value = "-" if aim.value is None else f"{aim.value:.4g} {aim.unit}".rstrip()
    return [aim.text, bound, value, "yes" if aim.reached else "no"]
