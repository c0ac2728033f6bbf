"""The benchmark of fine-tuning: what is held back, and what the page says."""

import argparse
from pathlib import Path

from support.collections import write_collection

from bandrank_bench.fine_tuning import HELD_BACK, Point, divided, prepare, report
from bandrank_training.collection import open_collection


def test_no_query_held_back_shares_a_relevant_document_with_the_others() -> None:
    """Each query has a relevant document of its own and one that three queries share."""
    qrels = {f"q{n}": {f"d{n}": 1, f"shared{n // 3}": 1} for n in range(30)}

    apart, others = divided(qrels, 5)

    known = {document for query in apart for document in qrels[query]}
    assert len(apart) == 5
    assert set(others) == {query for query in qrels if known.isdisjoint(qrels[query])}


def test_the_first_queries_are_those_of_larger_splits_too(tmp_path: Path) -> None:
    """Larger splits contain the smaller ones, so the curve shows what more queries add; labels of 0 are left out."""
    qrels = {f"q{n}": {f"d{n}": 1, "d0": 0} for n in range(20)}
    documents = {f"d{n}": "text" for n in range(20)}
    queries = {name: name for name in qrels}
    write_collection(tmp_path / "own", documents=documents, queries=queries, qrels=qrels, split="train")

    assert prepare(tmp_path / "own", "train", tmp_path / "work", [4, 12, 15], 6) == 13

    written = open_collection(tmp_path / "work")
    assert len(list(written.documents())) == 20
    apart, few, more = (written.qrels(split) for split in (HELD_BACK, "first-4", "first-12"))
    assert (len(apart), len(few), len(more)) == (6, 4, 12)
    assert few.items() <= more.items()
    assert not apart.keys() & more.keys()
    assert few == {name: {f"d{name[1:]}": 1} for name in few}
    assert not (tmp_path / "work" / "qrels" / "first-15.tsv").exists()  # there are only 13 queries to train on


def test_the_page_has_a_row_for_each_fine_tuning() -> None:
    point = Point("own", 1000, [0.5, 0.25, 0.75], [0.75, 0.5, 0.85], 12.4, "trained")

    page = report([point], "0123abcd", argparse.Namespace(start="sparse-w4", dtype="int8"))

    assert "- weights of the start: 0123abcd" in page
    assert "| own | 1,000 | 3 | 0.500 | 0.700 | +0.200 | 0.057 | trained | 12 |" in page
