"""Describes the faults of a body in terms of JSON.

pydantic names Python's types, and every kind that a value might have been.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

IN_JSON = dict.fromkeys(("model_type", "dataclass_type", "dict_type"), "Input should be an object") | {
    "list_type": "Input should be a valid array",
    "too_short": "Input should not be empty",  # no array has to have more than one item
}
SHOWN = 3
EXPECTED = "Input should be "
NOTHING = object()

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Fault:
    """What is wrong with the value at a path.

    choice: the path of the outermost value, around it or itself, that may be of several kinds, each with its own
    faults; None if there is no such value.
    """

    path: Path
    kind: str
    message: str
    choice: Path | None

    def __str__(self) -> str:
        return ": ".join(filter(None, (".".join(map(str, self.path)), self.message)))


def in_words(error: ValidationError, data: object) -> str:
    """Describes the first faults of some data, and says how many more there are."""
    found = [
        _fault(fault["loc"], fault["type"], fault["msg"], data)
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    by_choice: dict[Path | None, list[Fault]] = {}
    for fault in found:
        by_choice.setdefault(fault.choice, []).append(fault)
    faults = [
        fault for choice, group in by_choice.items() for fault in (group if choice is None else _likely(choice, group))
    ]
    more = f" (and {len(faults) - SHOWN} more)" if len(faults) > SHOWN else ""
    return "; ".join(map(str, faults[:SHOWN])) + more


def _fault(location: Sequence[str | int], kind: str, message: str, data: object) -> Fault:
    """A fault with its path in the data. pydantic's location also has the kinds that it tried, between the fields."""
    path: list[str | int] = []
    choice: Path | None = None
    value = data
    for number, step in enumerate(location, 1):
        if (part := _part(value, step)) is not NOTHING:
            value = part
        elif not (isinstance(value, dict) and kind == "missing" and number == len(location)):
            choice = tuple(path) if choice is None else choice
            continue
        path.append(step)
    return Fault(tuple(path), kind, IN_JSON.get(kind, message.removeprefix("Value error, ")), choice)


def _part(value: object, step: str | int) -> object:
    """The value of an object's key, or of an array's index; NOTHING for any other step."""
    if isinstance(value, dict):
        return value.get(step, NOTHING)
    return value[step] if isinstance(value, list) and isinstance(step, int) else NOTHING


def _likely(choice: Path, faults: list[Fault]) -> list[Fault]:
    """The faults of a value that may be of several kinds, for the kind that it looks like.

    A value whose parts or whose length are at fault is of the right kind.
    """
    by_path: dict[Path, list[Fault]] = {}
    for fault in [fault for fault in faults if fault.path != choice] or faults:
        by_path.setdefault(fault.path, []).append(fault)
    return [
        one
        for group in by_path.values()
        for one in [fault for fault in group if not fault.kind.endswith("_type")] or [_of_no_kind(group)]
    ]


def _of_no_kind(faults: list[Fault]) -> Fault:
    """One fault that names all kinds that a value might have been."""
    kinds = dict.fromkeys(fault.message.removeprefix(EXPECTED) for fault in faults)
    return replace(faults[0], message=EXPECTED + " or ".join(kinds))
