"""The words that surround a text when a model reads it."""

from dataclasses import dataclass

TEXT, INSTRUCTION = "{text}", "{instruction}"


@dataclass(frozen=True)
class Wording:
    """Words around a text, which are tokenised together with it, because pieces may cross the border.

    plain: the words, with {text} once.  instructed: the same with {instruction} beside it, for requests that carry one;
    empty if the model takes none.
    Raises ValueError if {text} or {instruction} is missing or there twice.
    """

    plain: str = TEXT
    instructed: str = ""

    def __post_init__(self) -> None:
        instructed = [self.instructed.count(each) for each in (TEXT, INSTRUCTION)] if self.instructed else []
        if any(count != 1 for count in (self.plain.count(TEXT), *instructed)):
            raise ValueError(f"a wording needs {TEXT} once, and {INSTRUCTION} once if it takes any: {self}")

    def around(self, instruction: str = "") -> tuple[str, str]:
        """The words before and after the text."""
        instructed = self.instructed if instruction else ""
        before, _, after = (instructed or self.plain).partition(TEXT)
        if not instructed:
            return before, after
        return before.replace(INSTRUCTION, instruction), after.replace(INSTRUCTION, instruction)


PLAIN = Wording()
