"""Writes the lock files of both images: what they share goes into both.txt, which the other two include.

Usage: python share.py FOLDER [OUT]. FOLDER has, as a resolver writes them (`make lock`), cpu.txt and gpu.txt with the
hashes of every file of each version, and pylock.*.toml with the files that fit the images' Python and processors. Only
the hashes of these are kept.
"""

import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

HEAD = re.compile(r"\A(?:#.*\n)*")
ENTRY = re.compile(r"^\S.*\n(?: .*\n)*", re.MULTILINE)  # a version, its hashes, and what requires it
HASH = re.compile(r"--hash=sha256:(\w+)")


def main(whole: Path, out: Path = Path(__file__).parent) -> None:
    """Splits the lock files of one folder into those of another."""
    texts = {name: (whole / f"{name}.txt").read_text(encoding="utf-8") for name in ("cpu", "gpu")}
    locks = [tomllib.loads(path.read_text(encoding="utf-8")) for path in whole.glob("pylock.*.toml")]
    packages = [package for lock in locks for package in lock["packages"]]
    fitting = {wheel["hashes"]["sha256"] for package in packages for wheel in package["wheels"]}
    head = HEAD.findall(texts["cpu"])[0]
    entries = {
        name: [_trimmed(entry, fitting) for entry in ENTRY.findall(HEAD.sub("", text))] for name, text in texts.items()
    }
    both = [entry for entry in entries["cpu"] if entry in entries["gpu"]]
    files = {name: ["--requirement both.txt\n", *(e for e in own if e not in both)] for name, own in entries.items()}
    for name, lines in {"both": both, **files}.items():
        (out / f"{name}.txt").write_text(head + "".join(lines), encoding="utf-8")


def _trimmed(entry: str, fitting: Collection[str]) -> str:
    """An entry with the hashes of fitting files alone. Raises ValueError if there are none."""
    version, *_, via = entry.splitlines()
    version = version.removesuffix(" \\")
    hashes = [f" --hash=sha256:{each}" for each in HASH.findall(entry) if each in fitting]
    if not hashes:
        raise ValueError(f"no file of {version} fits the images")
    return " \\\n".join([version, *hashes]) + f"\n{via}\n"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
