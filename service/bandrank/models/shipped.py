"""The checkpoints that are shipped with the service."""

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "checkpoints"
FAST = "mix-b"  # the checkpoint of the scorer that precomputes


def shipped(name: str) -> Path | None:
    """The folder of the checkpoint of this name, or None if none is shipped."""
    return FOLDER / name if name in names() else None


def names() -> list[str]:
    """Names of all shipped checkpoints, sorted."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))
