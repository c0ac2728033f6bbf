"""Which words of a candidate are left out, one window after the other, to see what they add to its score.

Occlusion: Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", 2014, section 4.2; of words, Li,
Monroe and Jurafsky, "Understanding Neural Networks through Representation Erasure", 2016.
"""

import re

# A run of characters that are not white space, but each character of a script that has no spaces between words.
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # kana, Chinese characters
)
WORD = re.compile(rf"[{NO_SPACES}]|[^\s{NO_SPACES}]+")


def windows(text: str, most: int) -> list[tuple[int, int]]:
    """(start, end) of at most so many windows of equally many words, the last perhaps of fewer, in code points.

    They are one word long where that is not too many. None overlaps another, and together they hold all words; white
    space around a window is in none.
    """
    words = [match.span() for match in WORD.finditer(text)]
    size = max(1, -(-len(words) // most))
    groups = [words[start : start + size] for start in range(0, len(words), size)]
    return [(group[0][0], group[-1][1]) for group in groups]


def without(text: str, window: tuple[int, int]) -> str:
    """The text without a window; white space on both sides of it stays."""
    start, end = window
    return text[:start] + text[end:]
