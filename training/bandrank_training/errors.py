"""Errors that end a command, because it was given something that it cannot use."""

from collections.abc import Sequence
from pathlib import Path


class BadInput(ValueError):
    """The base of this package's errors; the message is one sentence for whoever gave the input."""


class BadRecipe(BadInput):
    """A recipe that cannot be used; the message says what is wrong with it."""


class OtherRun(BadRecipe):
    """A folder whose state is of another run, which goes on with its own settings, weights and groups alone."""

    def __init__(self, state: Path, differing: Sequence[str]) -> None:
        """state: the file.  differing: names of what the two runs do not share."""
        super().__init__(
            f"{state} is of another run: {', '.join(differing)} differ; choose another `out`, or delete it"
        )
        self.differing = differing
