"""Files of groups: they are written whole or not at all, and an error names the damaged line."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.collections import write_lines

from bandrank_training.groups import BadGroups, Group, read_groups, write_groups

GROUPS = [
    Group("folder", "wer ist Å?", ["a", "b"], [2, 0], {"bm25": [1.5, -0.25]}),
    Group("ir_datasets:x", "who", ["c"], None, {}),
]


@pytest.mark.parametrize("name", ["groups.jsonl", "deep/er/groups.jsonl.gz"])
def test_groups_come_back(tmp_path: Path, name: str) -> None:
    """Groups are read as they were written, plain or compressed, judged or not, and the file's folder is made."""
    assert write_groups(tmp_path / name, GROUPS) == 2

    assert list(read_groups(tmp_path / name)) == GROUPS


def test_scores_are_kept_to_five_digits(tmp_path: Path) -> None:
    """Small scores keep their first five digits, too; more would be noise that takes a third of the file."""
    scores = [1.23456789, 1.23456789e-6, -2.0e-6]
    write_groups(tmp_path / "x.jsonl", [Group("c", "q", ["a", "b", "c"], None, {"one": scores})])

    assert next(read_groups(tmp_path / "x.jsonl")).scores == {"one": [1.23457, 1.2346e-6, -2.0e-6]}


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    """An older file stays until the new one is whole, and a new one that is never completed is removed."""
    path = tmp_path / "groups.jsonl.gz"
    write_groups(path, GROUPS)

    def broken() -> Iterator[Group]:
        yield GROUPS[0]
        assert list(read_groups(path)) == GROUPS
        raise RuntimeError("the power fails")

    with pytest.raises(RuntimeError, match="the power fails"):
        write_groups(path, broken())
    assert list(read_groups(path)) == GROUPS
    assert list(tmp_path.iterdir()) == [path]


GOOD = {"collection": "c", "query": "q", "candidates": ["a"], "labels": None, "scores": {}}


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "Expecting property name"), ("[]", "argument after"), ('{"collection": "c"}', "missing 4 required")]
    + [("[" * 99_999, "(recursion|Stack overflow)")]  # in the words of Python, which are others from 3.14 on
    + [
        (json.dumps(GOOD | change), message)
        for change, message in [
            ({"candidates": []}, "needs a candidate"),
            ({"candidates": ["a", "a"]}, "there twice"),
            ({"labels": []}, "one entry for each"),
            ({"labels": [1, 0]}, "one entry for"),
            ({"labels": ["1"]}, "must be integers"),
            ({"labels": [-1]}, "of at least 0"),
            ({"scores": {"x": []}}, "one entry"),
            ({"scores": []}, "no attribute"),
            ({"scores": {"x": ["2"]}}, "be finite numbers"),
            ({"scores": {"x": [math.nan]}}, "be finite numbers"),
            ({"scores": {"x": [10**400]}}, "be finite numbers"),
            ({"labels": [10**7]}, "of at least 0 and at most"),
            ({"query": 7}, "must be texts"),
            ({"domain": ["d"]}, "must be texts"),
            ({"query": "\ud800"}, "surrogates not allowed"),
        ]
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "groups.jsonl"
    write_groups(path, GROUPS)
    write_lines(path, *path.read_text(encoding="utf-8").splitlines(), line)
    read = read_groups(path)

    assert [next(read), next(read)] == GROUPS
    with pytest.raises(BadGroups, match=rf"groups\.jsonl, line 3: .*{message}"):
        next(read)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), r"groups\.jsonl\.gz: no such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-20]), r"groups\.jsonl\.gz, after line \d"),
        (lambda path: path.write_text("plain"), r"groups\.jsonl\.gz, after line 0"),
    ],
)
def test_a_file_that_holds_no_groups_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "groups.jsonl.gz"
    write_groups(path, GROUPS * 50)
    change(path)

    with pytest.raises(BadGroups, match=message):
        list(read_groups(path))
