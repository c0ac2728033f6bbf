"""Checks of config.json that families share."""

from collections.abc import Mapping, Sequence
from typing import Any

from bandrank.models.hf.model import SUPPORTED


def require_numbers(settings: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises ValueError for settings that are missing or not integers."""
    if missing := [name for name in names if not isinstance(settings.get(name), int)]:
        raise ValueError(f"config.json has no number for {', '.join(missing)}")


def require_plain(settings: Mapping[str, Any], plain: Mapping[str, Any], family: str) -> None:
    """Raises ValueError for settings with other values than the plain ones, the only ones that are computed here."""
    if other := {name: settings[name] for name, value in plain.items() if settings.get(name, value) != value}:
        raise ValueError(f"a {family} with {other} is not supported; {SUPPORTED}")
