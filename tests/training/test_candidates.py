"""What is re-ranked, and in which order it comes."""

from pathlib import Path

import pytest
from support.collections import write_lines, write_run_lines

from bandrank_training.candidates import first_stage, pools, read_candidates
from bandrank_training.collection import BadCollection


def test_the_best_of_a_run_come_first(tmp_path: Path) -> None:
    """By score, ties in the order of the file, at most `depth`."""
    path = write_run_lines(tmp_path / "run.trec", {"q1": {"z": 1, "a": 1, "b": 3, "c": 0}, "q2": {"a": -1}})

    assert first_stage(path, 3) == {"q1": [("b", 3.0), ("z", 1.0), ("a", 1.0)], "q2": [("a", -1.0)]}


def test_a_pool_does_not_give_its_judgements_away() -> None:
    """Files list relevant documents first, and ties keep the order: pools are sorted by id."""
    assert pools({"q": {"z": 1, "b": 0, "a": 0}}) == {"q": ["a", "b", "z"]}


@pytest.mark.parametrize("name", ["dev.100.tsv", "dev.100.tsv.gz"])
@pytest.mark.parametrize("header", [[], ["", "query-id\tcandidate-ids"]])
def test_candidate_lists_are_read(tmp_path: Path, name: str, header: list[str]) -> None:
    """Separated by spaces or tabs; a query may have none, and blank lines and those of other queries are left out, as a
    header is, if there is one.
    """
    path = write_lines(tmp_path / name, *header, "q1\td3 d1 d2", "", "q2 d1\td9", "q3\t", "q4\td1", "")

    assert read_candidates(path, {"q1", "q2", "q3"}) == {"q1": ["d3", "d1", "d2"], "q2": ["d1", "d9"], "q3": []}


@pytest.mark.parametrize(
    ("line", "reason"),
    [("q1\td4", "query q1 is there twice"), ("q2\td1 d1", "query q2 has a candidate twice")],
)
@pytest.mark.parametrize("name", ["lists.tsv", "lists.tsv.gz"])
def test_a_damaged_line_is_named(tmp_path: Path, name: str, line: str, reason: str) -> None:
    """By file and number, with what is wrong."""
    path = write_lines(tmp_path / name, "query-id\tcandidate-ids", "q1\td3", line)

    with pytest.raises(BadCollection, match=rf"{name}, line 3: .*{reason}"):
        read_candidates(path, {"q1", "q2"})
