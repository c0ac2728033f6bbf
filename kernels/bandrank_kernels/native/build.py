"""Compiles the CPU kernels. `python -m bandrank_kernels.native.build` compiles every variant for this kind of processor
into this package.
"""

import hashlib
import logging
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from bandrank_kernels.native.variants import VARIANTS, Variant, buildable_variants

log = logging.getLogger(__name__)
SOURCES = Path(__file__).parent / "src"
BUILT = Path(__file__).parent / "built"
# No option here lets the compiler change the order of sums or drop NaN: the same source gives the same bits.
OPTIONS = ("-std=c++20", "-O3", "-shared", "-fPIC", "-fno-math-errno", "-ffp-contract=fast", "-fvisibility=hidden")


class CannotBuild(RuntimeError):
    """The kernels cannot be compiled; the message says why, as a clause."""


def digest() -> str:
    """Identifies the sources and options."""
    content = hashlib.sha256(repr((OPTIONS, [variant.options for variant in VARIANTS])).encode())
    for source in sorted(SOURCES.iterdir()):
        content.update(source.name.encode() + source.read_bytes())
    return content.hexdigest()[:12]


def file_name(variant: Variant) -> str:
    """The name of a variant's library, built from the present sources."""
    return f"{variant.name}-{digest()}.so"


def find_compiler() -> list[str]:
    """The C++ compiler, as the first words of its command: $CXX, or else the first of g++ and clang++.

    Raises CannotBuild if there is none.
    """
    if asked := os.environ.get("CXX", "").split():
        if found := shutil.which(asked[0]):
            return [found, *asked[1:]]
        raise CannotBuild(f"there is no {asked[0]}, which the environment variable CXX names")
    if found := next(filter(None, map(shutil.which, ("g++", "clang++"))), None):
        return [found]
    raise CannotBuild("there is no C++ compiler (Debian: apt-get install g++)")


def build(variant: Variant, folder: Path) -> Path:
    """Compiles a variant into a folder; builds of the same at the same time each get a whole file.

    Raises CannotBuild if there is no compiler, if it fails, or if the folder cannot be written.
    """
    compiler = find_compiler()
    target = folder / file_name(variant)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            command = [*compiler, *OPTIONS, *variant.options, "-o", str(made), str(SOURCES / "exports.cpp")]
            result = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own words
            if result.returncode:
                raise CannotBuild(f"{compiler[0]} fails: {_first_error(result.stderr.decode(errors='replace'))}")
            with made.open("rb") as content:  # synced before it gets its name: a crash leaves no partial library
                os.fsync(content.fileno())
            made.replace(target)
    except OSError as error:
        elsewhere = "" if folder == BUILT else "; XDG_CACHE_HOME may name another folder"
        raise CannotBuild(f"{folder} cannot be written: {error.strerror or error}{elsewhere}") from error
    log.info("CPU kernels built: %s", target)
    return target


def find(variant: Variant) -> Path:
    """A variant's library: from the package, else from the user's cache, else newly built there.

    Raises CannotBuild.
    """
    name = file_name(variant)
    if _is_whole(BUILT / name):
        return BUILT / name
    cache = user_cache()
    return cache / name if _is_whole(cache / name) else build(variant, cache)


def user_cache() -> Path:
    """The folder of this user's builds. Raises CannotBuild if there is none."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bandrank" / "kernels"
    except RuntimeError as error:
        raise CannotBuild("this user has no home folder to build them in; XDG_CACHE_HOME may name another") from error


def _is_whole(path: Path) -> bool:
    """Whether a library is whole, up to the section table at its end: loading a truncated one kills the process."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return False
    table, entry, entries = *struct.unpack_from("<Q", header, 0x28), *struct.unpack_from("<HH", header, 0x3A)
    return bool(table + entry * entries <= size)


def _first_error(output: str) -> str:
    lines = output.strip().splitlines() or ["without a word"]
    return next((line for line in lines if "error" in line), lines[0])


def main() -> int:
    """Builds every variant for this kind of processor into the package."""
    for variant in buildable_variants():
        try:
            print(build(variant, BUILT))  # noqa: T201 - a command's output
        except CannotBuild as error:
            print(f"{variant.name}: {error}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
