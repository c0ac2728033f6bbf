"""The candidates to re-rank, from a run, the judgements or a list, and their order."""

import math
from pathlib import Path

import pytest
from support.collections import write_collection, write_lines, write_run_lines
from support.models import save_cross_encoder

from bandrank_training.__main__ import main
from bandrank_training.candidates import first_stage, pools, read_candidates
from bandrank_training.collection import BadCollection
from bandrank_training.results import read_evaluation


def test_the_best_of_a_run_come_first(tmp_path: Path) -> None:
    """Candidates come by score, ties in the order of the file, and at most `depth` of them."""
    path = write_run_lines(tmp_path / "run.trec", {"q1": {"z": 1, "a": 1, "b": 3, "c": 0}, "q2": {"a": -1}})

    assert first_stage(path, 3) == {"q1": [("b", 3.0), ("z", 1.0), ("a", 1.0)], "q2": [("a", -1.0)]}


def test_a_pool_does_not_give_its_judgements_away() -> None:
    """Files list relevant documents first and ties keep the given order, so a pool is sorted by id."""
    assert pools({"q": {"z": 1, "b": 0, "a": 0}}) == {"q": ["a", "b", "z"]}


@pytest.mark.parametrize("name", ["dev.100.tsv", "dev.100.tsv.gz"])
@pytest.mark.parametrize("header", [[], ["", "query-id\tcandidate-ids"]])
def test_candidate_lists_are_read(tmp_path: Path, name: str, header: list[str]) -> None:
    """Spaces or tabs separate ids, and a query may have none; a header, blank lines and other queries are skipped."""
    path = write_lines(tmp_path / name, *header, "q1\td3 d1 d2", "", "q2 d1\td9", "q3\t", "q4\td1", "")

    assert read_candidates(path, {"q1", "q2", "q3"}) == {"q1": ["d3", "d1", "d2"], "q2": ["d1", "d9"], "q3": []}


@pytest.mark.parametrize(
    ("line", "reason"),
    [("q1\td4", "query q1 is there twice"), ("q2\td1 d1", "query q2 has a candidate twice")],
)
@pytest.mark.parametrize("name", ["lists.tsv", "lists.tsv.gz"])
def test_a_damaged_line_is_named(tmp_path: Path, name: str, line: str, reason: str) -> None:
    path = write_lines(tmp_path / name, "query-id\tcandidate-ids", "q1\td3", line)

    with pytest.raises(BadCollection, match=rf"{name}, line 3: .*{reason}"):
        read_candidates(path, {"q1", "q2"})


def test_judged_documents_without_a_text_stay_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a collection that was thinned out, a pool is ranked without the missing documents; they count as not found."""
    qrels = {"q": {"a": 1, "b": 1, "gone": 1}, "r": {"lost": 1}}
    write_collection(
        tmp_path / "col", documents={"a": "man", "b": "she"}, queries={"q": "who", "r": "one"}, qrels=qrels
    )
    model, out = save_cross_encoder(tmp_path / "scorer"), tmp_path / "out"

    assert main(["evaluate", str(model), str(tmp_path / "col"), "--pool", "--out", str(out)]) == 0

    assert "col: 2 of 4 judged documents are not in the corpus, the first is gone; they" in capsys.readouterr().err
    values = read_evaluation(out / "col.test.pool.scorer.json").values
    found = 1 + 1 / math.log2(3)
    assert values["q"]["nDCG@10"] == pytest.approx(found / (found + 1 / math.log2(4)))
    assert values["r"]["nDCG@10"] == 0
