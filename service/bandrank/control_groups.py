"""The control groups of the process, which limit what a container may use."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, MOUNTS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def folders(controller: str, groups: Path = GROUPS, mounts: Path = MOUNTS) -> Iterator[tuple[int, Path]]:
    """The version, 1 or 2, and the folder of each group of the process that may have a controller, and of the groups
    above it; none on systems without control groups.

    groups: the file in which Linux lists the process's groups.  mounts: where their files are. In a container the files
    of its own group may be at the top.
    """
    with suppress(OSError):
        for line in groups.read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from ((2, each) for each in _upwards(mounts, group))
            elif controller in controllers.split(","):
                for mount in (mounts / controllers, mounts / controller):
                    yield from ((1, each) for each in _upwards(mount, group))


def _upwards(mount: Path, group: str) -> Iterator[Path]:
    """A group's folder and its parents, up to the mount."""
    folder = mount / group.lstrip("/")
    return (each for each in (folder, *folder.parents) if each.is_relative_to(mount))
