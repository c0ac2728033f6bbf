"""Which fields the names and patterns in a client's `fields` ask for.

A regular expression for each pattern would take long to make, and the standard library keeps thousands of them.
"""

from collections.abc import Iterable, Sequence

WILDCARD = "*"


def not_asked_for(names: Iterable[str], asked: set[str]) -> list[str]:
    """The names that are not in what is asked for, and that no pattern in it fits.

    `*` stands for any characters, also none; every other character for itself, as in the engines.
    """
    patterns = [_literals(each) for each in asked if WILDCARD in each]
    return [name for name in names if name not in asked and not any(_fits(*literals, name) for literals in patterns)]


def _literals(pattern: str) -> tuple[str, Sequence[str], str]:
    """What a pattern has before, between and behind its wildcards; of those side by side, the first alone counts."""
    first, *inner, last = pattern.split(WILDCARD)
    return first, [each for each in inner if each], last


def _fits(first: str, inner: Sequence[str], last: str, name: str) -> bool:
    """Whether a name begins and ends so, and has in between what has to be there, in its order.

    Each is taken where it comes first, which leaves most to those behind it.
    """
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for each in inner:
        found = name.find(each, at, end)
        if found < 0:
            return False
        at = found + len(each)
    return True
