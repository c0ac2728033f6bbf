"""Prints requirements of a pyproject.toml, one a line, so that an image can install them before it sees any code.

`requirements.py PYPROJECT GROUP...`: a group is `core` (the project's dependencies), `build` (what its build needs)
or the name of an extra. No group prints nothing; an unknown group ends with status 1 and the names there are.
"""
# ruff: noqa: INP001 -- a script, run by its path

import sys
import tomllib
from pathlib import Path


def requirement_groups(pyproject: Path) -> dict[str, list[str]]:
    """Every group of requirements that the file names."""
    content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = content["project"]
    return {
        "core": project["dependencies"],
        "build": content["build-system"]["requires"],
        **project.get("optional-dependencies", {}),
    }


def main(pyproject: str, *names: str) -> None:
    """Prints the requirements of the named groups."""
    groups = requirement_groups(Path(pyproject))
    for name in names:
        if name not in groups:
            sys.exit(f"{pyproject} has no requirements named {name!r}; it has {', '.join(sorted(groups))}")
        sys.stdout.writelines(f"{requirement}\n" for requirement in groups[name])


if __name__ == "__main__":
    main(*sys.argv[1:])
