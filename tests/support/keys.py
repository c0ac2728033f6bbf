"""Files of API keys."""

import hashlib
import json
from pathlib import Path

KEYS = {name: f"{name}-" + "k" * 40 for name in ("rank", "register", "admin")}  # each with the scope of its name


def key_table(scope: str, **more: float) -> str:
    """The lines of the table of the key with this scope."""
    digest = hashlib.sha256(KEYS[scope].encode("ascii")).hexdigest()
    fields = {"sha256": digest, "scopes": [scope], **more}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def write_keys(path: Path, **tables: str) -> str:
    """Writes a file of these tables, or of all of KEYS; returns its path."""
    tables = tables or {name: key_table(name) for name in KEYS}
    path.write_text("\n".join(f"[{name}]\n{table}" for name, table in tables.items()), encoding="utf-8")
    return str(path)
