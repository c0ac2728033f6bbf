"""Planted mistakes: all of a file's in one compilation, one of them awake at a time."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from bandrank_kernels.launch import Kernel
from emulation.compiled import SCHEDULES, EmulationError, Schedule
from emulation.launches import emulation_of, prepare

AWAKE = "awake_mistake"


@dataclass(frozen=True)
class Mistake:
    """text: an expression, or whole statements, that the source has once.  instead: what takes its place."""

    text: str
    instead: str

    def plant(self, source: str, number: int) -> str:
        """The source, in which the text is replaced while `number` is awake."""
        assert source.count(self.text) == 1, self.text
        asks = f"{AWAKE} == {number}"
        if self.text.rstrip().endswith(";") or "//" in self.text:
            either = f"if ({asks}) {{ {self.instead} }} else {{ {self.text} }}"
        else:
            either = f"({asks} ? ({self.instead}) : ({self.text}))"
        return source.replace(self.text, either)


def plant(kernel: Kernel, mistakes: Sequence[Mistake]) -> Kernel:
    """The kernel with all the mistakes asleep in it."""
    source = kernel.source
    for number, mistake in enumerate(mistakes):
        source = mistake.plant(source, number)
    return Kernel(f'extern "C" {{ int {AWAKE} = -1; }}\n{source}', kernel.expression)


def wake(kernel: Kernel, number: int) -> None:
    """One mistake of a planted kernel, by its number, and no other; -1 for none."""
    prepare(kernel)
    emulation_of(kernel).set(AWAKE, number)


def assert_found(
    planted: Kernel, number: int, is_right: Callable[[Schedule], bool], *, schedules: Sequence[Schedule] = SCHEDULES
) -> None:
    """That a planted kernel is right while its mistakes sleep, and wrong with this one awake, under one of the
    schedules at least. is_right: runs it and looks at the result; a launch that goes wrong is wrong too.
    """

    def survives(schedule: Schedule) -> bool:
        try:
            return is_right(schedule)
        except EmulationError:
            return False

    wake(planted, -1)
    assert survives(schedules[0])
    wake(planted, number)
    assert not all(survives(schedule) for schedule in schedules)


def plant_in_modules(names: Sequence[str], text: str, instead: str) -> dict[str, ModuleType]:
    """Fresh copies of Python modules that import each other as copies, one of which has `instead` for `text`.

    names: in the order of their imports. The modules themselves stay as they are.
    """
    sources = {name: Path(str(sys.modules[name].__file__)).read_text(encoding="utf-8") for name in names}
    assert sum(source.count(text) for source in sources.values()) == 1, text
    originals = {name: sys.modules[name] for name in names}
    copies: dict[str, ModuleType] = {}
    try:
        for name, source in sources.items():
            copies[name] = sys.modules[name] = ModuleType(name)
            exec(compile(source.replace(text, instead), f"{name} with {instead!r}", "exec"), copies[name].__dict__)  # noqa: S102
    finally:
        sys.modules.update(originals)
    return copies
