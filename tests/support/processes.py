"""What Linux knows of a process."""

from pathlib import Path


def state(pid: int) -> str:
    """The state of a process or thread: R if it runs or would run, S while it sleeps, T while it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
