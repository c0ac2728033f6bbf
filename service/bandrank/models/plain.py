"""Parses the plain values of JSON and TOML into dataclasses."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Parsed = TypeVar("Parsed")


def parse(kind: type[Parsed], value: Any) -> Parsed:
    """Parses a mapping into a (nested) dataclass. Its class method `variant`, if it has one, picks the subclass.

    Raises TypeError for a missing key, an unknown key or a value of another type, and ValueError for a bad value; the
    message names the path of keys.
    """
    parsed: Parsed = _parse(kind, value)
    return parsed


def _parse(kind: Any, value: Any) -> Any:
    """Parses a value of any type that a dataclass's field may have."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"expected a list, got {value!r}")
        return tuple(_parse(inner[0], item) for item in value)
    if origin is Literal and value not in inner:
        raise ValueError(f"{value!r} is none of {', '.join(map(repr, inner))}")
    if origin in {Union, UnionType}:
        options = [option for option in inner if option is not NoneType]
        return value if value is None or len(options) > 1 else _parse(options[0], value)
    if is_dataclass(kind) and not isinstance(value, kind):  # type: ignore[arg-type]  # a dataclass is a class
        return _parse_dataclass(kind, value)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object, got {value!r}")
        return {name: _parse(inner[1], item) for name, item in value.items()}
    if kind in {bool, int, float, str} and not _is_a(kind, value):
        raise TypeError(f"expected {kind.__name__}, got {value!r}")
    return value


def _parse_dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object for {kind.__name__}, got {value!r}")
    if hasattr(kind, "variant"):
        kind = kind.variant(value)
    if unknown := value.keys() - {field.name for field in fields(kind)}:
        raise TypeError(f"unknown keys: {', '.join(sorted(unknown))}")
    hints = get_type_hints(kind)
    parsed = {}
    for name, item in value.items():
        try:
            parsed[name] = _parse(hints[name], item)
        except (TypeError, ValueError) as error:
            plain = TypeError if isinstance(error, TypeError) else ValueError
            raise plain(f"{name}: {error}") from error
    required = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    if missing := required - value.keys():
        raise TypeError(f"missing keys: {', '.join(sorted(missing))}")
    return kind(**parsed)


def _is_a(kind: type, value: Any) -> bool:
    """Whether a plain value is of a plain type. An int is also a float; a bool is neither."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
