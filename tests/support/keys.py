"""Files of API keys."""

import hashlib
import json
from pathlib import Path

KEYS = {name: f"{name}-" + "k" * 40 for name in ("rank", "register", "admin")}  # each key is named after its scope


def key_table(scope: str, **more: float) -> str:
    """The fields of the key with this scope, as lines of TOML. more: further fields."""
    digest = hashlib.sha256(KEYS[scope].encode("ascii")).hexdigest()
    fields = {"sha256": digest, "scopes": [scope], **more}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())


def write_keys(path: Path, **tables: str) -> str:
    """Writes a file of these tables, by default those of all KEYS; returns its path."""
    tables = tables or {name: key_table(name) for name in KEYS}
    path.write_text("\n".join(f"[{name}]\n{table}" for name, table in tables.items()), encoding="utf-8")
    return str(path)
