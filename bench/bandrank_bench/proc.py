"""What the kernel reports about the memory of a process. Linux only."""

from pathlib import Path


def sizes(process: int | str, file: str) -> dict[str, int]:
    """The fields of a /proc file that are sizes, in bytes. process: a pid, or "self"."""
    lines = (line.split() for line in Path(f"/proc/{process}/{file}").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1:] == ["kB"]}
