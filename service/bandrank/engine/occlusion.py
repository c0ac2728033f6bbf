"""Chooses the words of a candidate to leave out, one window after the other, to see what they add to its score.

Occlusion: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", 2014, section 4.2; of words, Li,
Monroe and Jurafsky, "Understanding Neural Networks through Representation Erasure", 2016.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

# A run of characters other than white space or, in a script without spaces between words, a single character.
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana, Chinese characters
)
WORD = re.compile(rf"[{NO_SPACES}]|[^\s{NO_SPACES}]+")

Window = tuple[int, int]  # start and end of one word or several in a row, in code points


@dataclass(frozen=True)
class Scope:
    """The part of a text, in code points, in which words are left out for a scorer.

    rows: what it takes to score that part once.
    """

    start: int
    end: int
    rows: float

    def __contains__(self, words: Window) -> bool:
        """Whether the words begin in it."""
        return self.start <= words[0] < self.end

    def of(self, text: str) -> str:
        """That part of the text."""
        return text[self.start : self.end]

    def without(self, text: str, words: Window) -> str:
        """That part of the text without the given words; white space on both sides of them stays."""
        return text[self.start : words[0]] + text[words[1] : self.end]


def windows(text: str, scopes: Sequence[Scope], *, max_windows: int, max_rows: float = float("inf")) -> list[Window]:
    """Splits the words of scopes into at most `max_windows` windows of equal length, shorter at the end of a scope.

    A window is one word unless that makes too many windows or too many rows: each takes the rows of the scopes that it
    is in. Windows do not overlap, leave out the white space around them, and together hold all words of the scopes. A
    scope with a word has at least one window, whatever that takes.
    """
    words = [match.span() for match in WORD.finditer(text)]
    grouped = groupby(words, key=lambda word: tuple(scope for scope in scopes if word in scope))
    groups = [(within, list(group)) for within, group in grouped if within]
    longest = max((len(group) for _, group in groups), default=1)

    def fits(size: int) -> bool:
        counts = [(-(-len(group) // size), within) for within, group in groups]
        rows = sum(count * sum(scope.rows for scope in within) for count, within in counts)
        return sum(count for count, _ in counts) <= max_windows and rows <= max_rows

    size = 1 + bisect_left(range(1, longest), True, key=fits)  # noqa: FBT003 - what `fits` has to be
    parts = [group[start : start + size] for _, group in groups for start in range(0, len(group), size)]
    return [(part[0][0], part[-1][1]) for part in parts]


def excerpts(text: str, max_parts: int) -> list[Window]:
    """Splits a text into at most `max_parts` parts of equally many words; the last may have fewer."""
    return windows(text, [Scope(0, len(text), 0.0)], max_windows=max_parts)
