"""Frozen dataclasses from plain values, as JSON and TOML give them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def parse(kind: Any, value: Any) -> Any:
    """A (nested) dataclass from a mapping.

    Raises TypeError for a missing or unknown key, ValueError for a bad value.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(parse(inner[0], item) for item in value)
    if origin is Literal and value not in inner:
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, inner))}")
    if origin in {Union, UnionType} and value is not None:
        options = [option for option in inner if option is not NoneType]
        return parse(options[0], value) if len(options) == 1 else value
    if not is_dataclass(kind) or isinstance(value, kind):  # type: ignore[arg-type]  # a dataclass is a class
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object for {getattr(kind, '__name__', kind)}, got {value!r}")
    hints = get_type_hints(kind)
    if unknown := value.keys() - {field.name for field in fields(kind)}:
        raise TypeError(f"unknown keys: {', '.join(sorted(unknown))}")
    make: Any = kind
    return make(**{name: parse(hints[name], item) for name, item in value.items()})
