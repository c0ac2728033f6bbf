"""Errors that end a command because its input cannot be used."""

from collections.abc import Sequence
from pathlib import Path


class BadInput(ValueError):
    """The base of this package's errors; the message is one sentence for the user."""


class BadRecipe(BadInput):
    """A recipe that cannot be used; the message says what is wrong with it."""


class OtherRun(BadRecipe):
    """The folder holds the state of another run, which only its own settings, weights and groups can resume."""

    def __init__(self, state: Path, differing: Sequence[str]) -> None:
        """state: the file.  differing: names of what differs between the two runs."""
        super().__init__(
            f"{state} is of another run: {', '.join(differing)} differ; choose another `out`, or delete it"
        )
        self.differing = differing
