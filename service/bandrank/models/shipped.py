"""The checkpoints that come with the service, by name."""

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "checkpoints"
FAST = "mix-b"  # the scorer that precomputes


def shipped(name: str) -> Path | None:
    """The folder of a checkpoint that is shipped under this name, if there is one."""
    return FOLDER / name if name in names() else None


def names() -> list[str]:
    """Of all of them."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))
