"""JSON schemas that are as strict as a documented body."""

from typing import Any

TEXT = {"type": "string", "minLength": 1}


def shape(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of an object with these fields and no others."""
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
        "additionalProperties": False,
    }
