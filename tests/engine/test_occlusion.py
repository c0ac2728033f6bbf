"""The words of a text that are left out, and the windows into which too many of them are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.occlusion import windows, without


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
    """Or single characters of scripts that have no spaces."""
    assert [text[start:end] for start, end in windows(text, 64)] == words


@given(st.text(alphabet="ab \n蜂🐝"), st.integers(1, 9))
def test_windows_hold_every_word_once(text: str, most: int) -> None:
    """They are in order, no more than may be, and begin and end with a word."""
    found = windows(text, most)

    assert len(found) <= most
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in found)
    ends = [0, *(place for window in found for place in window), len(text)]
    assert ends == sorted(ends)
    between = [text[end:start] for end, start in zip(ends[::2], ends[1::2], strict=True)]
    assert "".join(between).strip() == ""


def test_too_many_words_are_merged_evenly() -> None:
    """130 words in at most 64 windows are 43 windows of three and one of one."""
    sizes = [(end - start + 1) // 5 for start, end in windows("word " * 130, 64)]

    assert sizes == [3] * 43 + [1]


def test_a_window_is_left_out_with_nothing_around_it() -> None:
    """White space stays where it was."""
    assert without("Bees find home.", (5, 9)) == "Bees  home."
