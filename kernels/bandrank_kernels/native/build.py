"""Compiles the CPU kernels: `python -m bandrank_kernels.native.build` into this package, in every variant for this kind
of processor.
"""

import hashlib
import logging
import os
import shutil
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
    """Names the state of the sources and options."""
    content = hashlib.sha256(repr((OPTIONS, [variant.options for variant in VARIANTS])).encode())
    for source in sorted(SOURCES.iterdir()):
        content.update(source.name.encode() + source.read_bytes())
    return content.hexdigest()[:12]


def file_name(variant: Variant) -> str:
    """The name of a variant's library, built from the present sources."""
    return f"{variant.name}-{digest()}.so"


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, or the first of g++ and clang++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def build(variant: Variant, folder: Path) -> Path:
    """Compiles a variant into a folder; whoever builds the same at the same time gets a whole file too.

    Raises CannotBuild if there is no compiler, if it fails, or if the folder cannot be written.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CannotBuild("there is no C++ compiler (Debian: apt-get install g++)")
    target = folder / file_name(variant)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            command = [compiler, *OPTIONS, *variant.options, "-o", str(made), str(SOURCES / "exports.cpp")]
            result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
            if result.returncode:
                raise CannotBuild(f"{compiler} fails: {_first_error(result.stderr)}")
            made.replace(target)
    except OSError as error:
        raise CannotBuild(f"{folder} cannot be written: {error.strerror or error}") from error
    log.info("CPU kernels built: %s", target)
    return target


def find(variant: Variant) -> Path:
    """A variant's library: that in the package, or else in the user's cache, or else a new build there.

    Raises CannotBuild.
    """
    name = file_name(variant)
    existing = (path for path in (BUILT / name, user_cache() / name) if path.is_file())
    return next(existing, None) or build(variant, user_cache())


def user_cache() -> Path:
    """The folder of this user's builds."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bandrank" / "kernels"


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
