"""Writes the lock files of both images: what they share goes into both.txt, which the other two include.

Usage: python share.py FOLDER, which has cpu.txt and gpu.txt as a resolver writes them (`make lock`).
"""

import re
import sys
from pathlib import Path

HEAD = re.compile(r"\A(?:#.*\n)*")
ENTRY = re.compile(r"^\S.*\n(?: .*\n)*", re.MULTILINE)  # a version, its hashes, and what requires it


def main(whole: Path, out: Path = Path(__file__).parent) -> None:
    """Splits the lock files of one folder into those of another."""
    texts = {name: (whole / f"{name}.txt").read_text(encoding="utf-8") for name in ("cpu", "gpu")}
    head = HEAD.findall(texts["cpu"])[0]
    entries = {name: ENTRY.findall(HEAD.sub("", text)) for name, text in texts.items()}
    both = [entry for entry in entries["cpu"] if entry in entries["gpu"]]
    files = {name: ["--requirement both.txt\n", *(e for e in own if e not in both)] for name, own in entries.items()}
    for name, lines in {"both": both, **files}.items():
        (out / f"{name}.txt").write_text(head + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
