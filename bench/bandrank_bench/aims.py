"""What a benchmark is meant to show, next to what it measured."""

from collections.abc import Iterable
from dataclasses import dataclass

from bandrank_bench.output import table


@dataclass(frozen=True)
class Aim:
    """A bound on a value. value: None if not measured.  at_least: whether the bound is a minimum, else a maximum."""

    text: str
    bound: float
    value: float | None
    unit: str = ""
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the value was measured and is within the bound."""
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def aims_table(aims: Iterable[Aim], name: str = "aim", verdict: str = "reached") -> str:
    """A Markdown table with a row per aim. name, verdict: the heads of the first and the last column."""
    return table([name, "bound", "measured", verdict], map(_row, aims))


def _row(aim: Aim) -> list[str]:
    bound = f"{'at least' if aim.at_least else 'at most'} {aim.bound:g} {aim.unit}".rstrip()
    value = "-" if aim.value is None else f"{aim.value:.4g} {aim.unit}".rstrip()
    return [aim.text, bound, value, "yes" if aim.reached else "no"]
