"""Matches fields with the names and patterns in a client's `fields`.

Regular expressions would take long to compile, and the standard library would keep thousands of them.
"""

from collections.abc import Iterable, Sequence

WILDCARD = "*"


def not_asked_for(names: Iterable[str], asked: set[str]) -> list[str]:
    """The names that `asked` does not contain, and that match no pattern in it.

    `*` matches any characters, or none; every other character matches itself, as in the engines.
    """
    patterns = [_literals(each) for each in asked if WILDCARD in each]
    return [name for name in names if name not in asked and not any(_fits(*literals, name) for literals in patterns)]


def _literals(pattern: str) -> tuple[str, Sequence[str], str]:
    """The parts of a pattern before, between and after its wildcards; adjacent wildcards count as one."""
    first, *inner, last = pattern.split(WILDCARD)
    return first, [each for each in inner if each], last


def _fits(first: str, inner: Sequence[str], last: str, name: str) -> bool:
    """Whether a name begins with `first`, ends with `last`, and has the `inner` parts in between, in order.

    Taking each part where it first occurs leaves the most room for those after it.
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
