"""Folders that must not load."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.models import edit_json

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model


def assert_refused(folder: Path, message: str, settings: Mapping[str, Any] | None = None) -> None:
    """Asserts that a folder does not load, and that the error says why.

    message: a regular expression.  settings: keys of its config.json that are changed before.
    """
    if settings is not None:
        edit_json(folder / "config.json", settings)
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))
