"""Published pairs of scored documents become groups of two."""

from pathlib import Path

import pytest
from support.collections import write_collection, write_lines

from bandrank_training.__main__ import main
from bandrank_training.collection import BadCollection
from bandrank_training.groups import Group, read_groups
from bandrank_training.pairs import read_pairs


def test_a_line_is_a_group(tmp_path: Path) -> None:
    """The relevant document comes first, each document has its score, and ids may have spaces."""
    folder = str(write_collection(tmp_path / "c", queries={"q1": "who?", "q2": "where?"}))
    file = write_lines(tmp_path / "pairs.tsv.gz", "9.5\t-1.25\tq2\td 7\td1\r", "3\t4\tq1\td1\td2")

    assert list(read_pairs(file, folder, "cat")) == [
        Group(folder, "where?", ["d 7", "d1"], [1, 0], {"cat": [9.5, -1.25]}),
        Group(folder, "who?", ["d1", "d2"], [1, 0], {"cat": [3.0, 4.0]}),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1\t2\tq1\td1", "expected score, score, query id"),
        ("1\tx\tq1\td1\td2", "expected score, score, query id"),
        ("1\tnan\tq1\td1\td2", "scores must be finite numbers"),
        ("1\t2\tq9\td1\td2", "there is no query 'q9'"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    folder = str(write_collection(tmp_path / "c", queries={"q1": "who?"}))
    file = write_lines(tmp_path / "pairs.tsv", "1\t2\tq1\td1\td2", line)

    with pytest.raises(BadCollection, match=rf"pairs\.tsv, line 2: .*{said}"):
        list(read_pairs(file, folder, "cat"))


def test_the_command_writes_groups(tmp_path: Path) -> None:
    """If `pairs` cannot find the collection, it exits with 2 and leaves no file."""
    folder = str(write_collection(tmp_path / "c", queries={"q1": "who?"}))
    file = write_lines(tmp_path / "pairs.tsv", "1\t2\tq1\td1\td2")
    out = tmp_path / "groups.jsonl"

    assert main(["pairs", str(file), folder, "--out", str(out)]) == 0
    assert [group.candidates for group in read_groups(out)] == [["d1", "d2"]]
    assert main(["pairs", str(file), str(tmp_path / "nowhere"), "--out", str(tmp_path / "none.jsonl")]) == 2
    assert not (tmp_path / "none.jsonl").exists()
