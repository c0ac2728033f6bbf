"""Which words of a text are left out, and how too many of them are merged into windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.occlusion import Scope, Window, excerpts, windows


def in_all(text: str, most: int, max_rows: float = 1e9) -> list[Window]:
    """Windows of a single scope: the whole text, which takes one row a window."""
    return windows(text, [Scope(0, len(text), 1.0)], max_windows=most, max_rows=max_rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t", []),
        ("Bees find home.", ["Bees", "find", "home."]),
        ("  don't \u2003 stop\n", ["don't", "stop"]),
        ("🐝 über the e\u0301t\u00e9", ["🐝", "über", "the", "e\u0301t\u00e9"]),
        ("蜜蜂 fly 回家。", ["蜜", "蜂", "fly", "回", "家", "。"]),
        ("x蜂y", ["x", "蜂", "y"]),
    ],
)
def test_words_are_what_is_between_spaces(text: str, words: list[str]) -> None:
    """In scripts without spaces each character is a word."""
    assert [text[start:end] for start, end in in_all(text, 64)] == words


@given(st.text(alphabet="ab \n蜂🐝"), st.integers(1, 9))
def test_windows_hold_every_word_once(text: str, most: int) -> None:
    found = in_all(text, most)

    assert len(found) <= most
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in found)
    ends = [0, *(place for window in found for place in window), len(text)]
    assert ends == sorted(ends)
    between = [text[end:start] for end, start in zip(ends[::2], ends[1::2], strict=True)]
    assert "".join(between).strip() == ""


def test_too_many_words_are_merged_evenly() -> None:
    """130 words in at most 64 windows are 43 windows of three and one of one."""
    sizes = [(end - start + 1) // 5 for start, end in in_all("word " * 130, 64)]

    assert sizes == [3] * 43 + [1]


def test_windows_are_fewer_where_they_take_many_rows() -> None:
    """All windows together take no more rows than allowed, but there is always one."""
    text = "word " * 100

    assert len(in_all(text, 64, max_rows=20.0)) == 20
    assert len(in_all(text, 64, max_rows=0.5)) == 1


def test_scopes_have_windows_of_their_own() -> None:
    """No window straddles the boundary of a scope, and words outside all scopes are in no window."""
    text = "a b c d e f g h i j k l"
    scopes = [Scope(0, 10, 1.0), Scope(6, 16, 2.0)]
    found = windows(text, scopes, max_windows=64, max_rows=12.0)

    assert [text[start:end] for start, end in found] == ["a b", "c", "d e", "f g", "h"]
    assert [[each in scope for each in found] for scope in scopes] == [
        [True, True, True, False, False],
        [False, False, True, True, True],
    ]


def test_a_word_is_where_it_begins() -> None:
    """If the end of a scope cuts a word in two, the part inside the scope is left out."""
    text, scope = "one playing", Scope(0, 8, 1.0)

    assert in_all(text, 9) == [(0, 3), (4, 11)]
    assert windows(text, [scope], max_windows=9) == [(0, 3), (4, 11)]
    assert scope.without(text, (4, 11)) == "one "


def test_excerpts_are_the_text_in_parts() -> None:
    text = "one two three four five"

    assert [text[start:end] for start, end in excerpts(text, 2)] == ["one two three", "four five"]


def test_a_window_is_left_out_with_nothing_around_it() -> None:
    """The white space around the window stays, and nothing outside the scope is added."""
    text = "Bees find home."

    assert Scope(0, 15, 1.0).without(text, (5, 9)) == "Bees  home."
    assert Scope(5, 14, 1.0).without(text, (5, 9)) == " home"
