"""Errors that end a command, because it was given something that it cannot use."""


class BadInput(ValueError):
    """The base of this package's errors; the message is one sentence for whoever gave the input."""


class BadRecipe(BadInput):
    """A recipe that cannot be used; the message says what is wrong with it."""
