"""Keeps two commands from writing into one folder at the same time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from bandrank_training.errors import BadInput


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates a folder and locks it until the block, or the process, ends. Raises BadInput if another has locked it.

    The lock is on a file in it, which goes with the block; one that a killed process left locks nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    taken = f"another command writes into {folder}; choose another folder, or wait"
    with path.open("w") as file:
        os.register_at_fork(after_in_child=file.close)  # or a child that stays would keep it locked
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise BadInput(taken) from None
        except OSError:  # a file system without locks
            pass
        if os.fstat(file.fileno()).st_nlink == 0:  # the other ended in between, and a third may have a lock by now
            raise BadInput(taken)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
