"""The words that surround a text when a model reads it."""

from dataclasses import dataclass

TEXT, INSTRUCTION = "{text}", "{instruction}"


@dataclass(frozen=True)
class Wording:
    """Words around a text, which are tokenised together with it, because pieces may cross the border.

    plain: the words, with {text} once.  instructed: the same with {instruction} before it, for requests that carry one;
    empty if the model takes none.
    Raises ValueError if {text} or {instruction} is missing or misplaced.
    """

    plain: str = TEXT
    instructed: str = ""

    def __post_init__(self) -> None:
        before = self.instructed.partition(TEXT)[0]
        if self.plain.count(TEXT) != 1 or (
            self.instructed and (self.instructed.count(TEXT) != 1 or INSTRUCTION not in before)
        ):
            raise ValueError(f"a wording needs {TEXT} once, and {INSTRUCTION} before it if there is one: {self}")

    def around(self, instruction: str = "") -> tuple[str, str]:
        """The words before and after the text."""
        instructed = self.instructed if instruction else ""
        before, _, after = (instructed or self.plain).partition(TEXT)
        return before.replace(INSTRUCTION, instruction) if instructed else before, after


PLAIN = Wording()
