"""Keeps two commands from writing into one folder at the same time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from bandrank_training.errors import BadInput


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates a folder and locks it until the block, or the process, ends. Raises BadInput if another has locked it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        os.register_at_fork(after_in_child=file.close)  # or a child that stays would keep it locked
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another command writes into {folder}; choose another folder, or wait") from None
        except OSError:  # a file system without locks
            pass
        yield
