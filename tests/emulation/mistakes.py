"""Planted mistakes: a line that is marked with a name computes something else, which tests must notice (README.md).

A kernel has all mistakes of a list in one compilation, one of them awake at a time.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from bandrank_kernels.launch import Kernel
from emulation.compiled import SCHEDULES, EmulationError, Schedule
from emulation.launches import emulation_of, prepare

AWAKE = "awake_mistake"
MARKER = re.compile(r"(?://|#) @([a-z-]+)")


@dataclass(frozen=True)
class Mistake:
    """A mistake to plant.  marker: the name with which one line of the source ends.  instead: replaces the line's
    value, for which `$` stands, or the whole line if that is a statement without a value.
    """

    marker: str
    instead: str = ""


def plant(kernel: Kernel, mistakes: Sequence[Mistake]) -> Kernel:
    """Returns the kernel with all the mistakes in it, asleep. Raises LookupError for a marker that the source does not
    have exactly once.
    """
    source = kernel.source
    for number, mistake in enumerate(mistakes):
        before, value, after, is_statement = _cut(source, mistake.marker)
        instead = mistake.instead.replace("$", f"({value})")
        asks = f"{AWAKE} == {number}"
        if is_statement:
            source = f"{before}if ({asks}) {{ {instead} }} else {{ {value} }}{after}"
        else:
            source = f"{before}({asks} ? ({instead}) : ({value})){after}"
    return Kernel(f'extern "C" {{ int {AWAKE} = -1; }}\n{source}', kernel.expression)


def wake(kernel: Kernel, number: int) -> None:
    """Wakes the mistake with this number in a planted kernel, and puts all others to sleep; -1 wakes none."""
    prepare(kernel)
    emulation_of(kernel).set(AWAKE, number)


def assert_noticed(
    planted: Kernel, number: int, is_right: Callable[[Schedule], bool], *, schedules: Sequence[Schedule] = SCHEDULES
) -> None:
    """Asserts that a planted kernel is right while its mistakes sleep, and wrong under at least one of the schedules
    while this one is awake. is_right: runs the kernel and checks the result; a launch that raises an error is wrong
    too.
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


def plant_in_modules(names: Sequence[str], mistake: Mistake | None) -> dict[str, ModuleType]:
    """Returns fresh copies of Python modules, which import each other's copies; one of them has the mistake.

    names: in the order of their imports. The modules themselves are not changed.
    """
    sources = {name: Path(str(sys.modules[name].__file__)).read_text(encoding="utf-8") for name in names}
    if mistake is not None:
        (name,) = [name for name, source in sources.items() if mistake.marker in MARKER.findall(source)]
        before, value, after, _ = _cut(sources[name], mistake.marker)
        sources[name] = f"{before}{mistake.instead.replace('$', f'({value})')}{after}"
    originals = {name: sys.modules[name] for name in names}
    copies: dict[str, ModuleType] = {}
    try:
        for name, source in sources.items():
            copies[name] = sys.modules[name] = ModuleType(name)
            exec(compile(source, f"{name} with {mistake}", "exec"), copies[name].__dict__)  # noqa: S102
    finally:
        sys.modules.update(originals)
    return copies


def _cut(source: str, marker: str) -> tuple[str, str, str, bool]:
    """Returns the source before the value of the marked line, the value, the rest, and whether it is a whole statement.

    The value is the condition of an `if` or a `for`, what is returned, or what is assigned: the first of these.
    """
    marks = [mark for mark in MARKER.finditer(source) if mark[1] == marker]
    if len(marks) != 1:
        raise LookupError(f"{len(marks)} lines are marked @{marker}")
    start = source.rindex("\n", 0, marks[0].start()) + 1
    line = source[start : marks[0].start()].rstrip()
    indent = len(line) - len(line.lstrip())
    if condition := re.match(r"\s*if \(", line):
        first, last = condition.end(), _closing(line, condition.end())
    elif condition := re.match(r"\s*for \([^;]*; ", line):
        first, last = condition.end(), line.index(";", condition.end())
    elif assigned := (re.search(r"\breturn ", line) or re.search(r"(?<![=<>!])=(?!=) ", line)):
        first, last = assigned.end(), _end(line, assigned.end())
    else:
        return source[: start + indent], line[indent:], source[start + len(line) :], True
    return source[: start + first], line[first:last], source[start + last :], False


def _closing(line: str, first: int) -> int:
    """Returns the index at which the parenthesis closes that was opened before `first`."""
    depth = 1
    for position in range(first, len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if depth == 0:
            return position
    raise LookupError(f"a condition does not end on its line: {line.strip()}")


def _end(line: str, first: int) -> int:
    """Returns the index at which an expression ends: at C++'s semicolon or at the end of the line."""
    semicolon = line.find(";", first)
    return len(line) if semicolon < 0 else semicolon
