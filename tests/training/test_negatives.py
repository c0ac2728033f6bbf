"""Mining: which documents are negatives of a query, and which queries become one or are kept out of training."""

import json
from dataclasses import replace
from pathlib import Path

from support.collections import write_collection, write_lines
from support.models import save_bi_encoder

from bandrank_training.groups import Group, read_groups
from bandrank_training.mining import mine
from bandrank_training.mining_recipe import MiningRecipe, Source

DOCUMENTS = {f"d{n}": f"the castle by river {n}" for n in range(8)}
QUERY = {"q0": "which castle"}


def mined(folder: Path, documents: dict[str, str], qrels: dict[str, int]) -> dict[str, int]:
    """Mines a collection of one query, and returns the labels of its group by document."""
    write_collection(folder / "col", documents=documents, queries=QUERY, qrels={"q0": qrels}, split="train")
    out = folder / "groups.jsonl"
    assert mine(MiningRecipe(str(out), (Source(str(folder / "col")),), hard=20, random=0, max_judged=2)) == 1
    (group,) = read_groups(out)
    assert group.labels is not None
    return dict(zip(group.candidates, group.labels, strict=True))


def test_what_was_judged_irrelevant_is_a_negative(tmp_path: Path) -> None:
    """Documents that were judged irrelevant are the surest negatives, so all of them are in the group."""
    qrels = {"d0": 2} | {f"d{n}": 0 for n in range(1, 6)} | {"d6": -1}

    assert mined(tmp_path, DOCUMENTS, qrels) == dict.fromkeys(DOCUMENTS, 0) | {"d0": 2}


def test_a_relevant_document_that_was_left_out_is_no_negative(tmp_path: Path) -> None:
    """A copy of a relevant document's text is no negative either, unless the copy was judged irrelevant."""
    documents = DOCUMENTS | {"copy": DOCUMENTS["d0"], "of the third": DOCUMENTS["d2"], "irrelevant": DOCUMENTS["d1"]}
    qrels = {"d0": 3, "d1": 2, "d2": 1, "irrelevant": 0}

    expected = {"d0": 3, "d1": 2} | {f"d{n}": 0 for n in range(3, 8)} | {"irrelevant": 0}
    assert mined(tmp_path, documents, qrels) == expected


def test_a_query_that_was_asked_twice_has_one_group(tmp_path: Path) -> None:
    """A log gives each search its own id; what answers a query under one id is no negative of it under another."""
    queries = {"q0": "which castle", "q1": "which castle", "q2": "the castle", "q3": "castle by the river"}
    qrels = {"q0": {"d0": 1, "d1": 0}, "q1": {"d1": 2}, "q2": {"d2": 1}, "q3": {"d3": 0}}
    write_collection(tmp_path / "col", documents=DOCUMENTS, queries=queries, qrels=qrels, split="train")
    out, folder = tmp_path / "groups.jsonl", str(tmp_path / "col")

    mine(MiningRecipe(str(out), (Source(folder), Source(folder, queries="keywords")), hard=20, random=0))

    relevant = {
        group.query: {name for name, label in zip(group.candidates, group.labels or [], strict=True) if label > 0}
        for group in read_groups(out)
    }
    assert relevant == {"which castle": {"d0", "d1"}, "the castle": {"d2"}, "castle": {"d0", "d1", "d2"}}
    assert sum(1 for _ in read_groups(out)) == 3


def test_a_query_set_apart_is_not_trained_on_in_another_case(tmp_path: Path) -> None:
    """A log holds the same query in several cases, as people typed it."""
    texts = [text for n in range(4) for text in (f"Which Castle by {n}?", f"which castle BY {n}")]
    queries = {f"q{n}": text for n, text in enumerate(texts)}
    qrels = {name: {f"d{n // 2}": 1} for n, name in enumerate(queries)}
    write_collection(tmp_path / "col", documents=DOCUMENTS, queries=queries, qrels=qrels, split="train")
    out, dev = tmp_path / "groups.jsonl", tmp_path / "dev.jsonl"
    mine(MiningRecipe(str(out), (Source(str(tmp_path / "col")),), dev_out=str(dev), dev_groups=1))

    (apart,), trained = read_groups(dev), list(read_groups(out))

    assert len(trained) == 6
    assert not {words(group) for group in trained} & {words(apart)}


def test_passages_of_a_page_that_answers_are_no_negatives(tmp_path: Path) -> None:
    """Passages of other pages are negatives, also one that only the vectors find, but no copy of one that answers."""
    folder = write_collection(tmp_path / "col", queries={"q": "cat"}, qrels={"q": {"a0": 1}}, split="train")
    rows = [{"_id": f"{page}{n}", "text": f"cat {page} {n}", "page": page} for page in "ab" for n in range(3)]
    rows += [{"_id": "c", "text": "dog"}, {"_id": "copy", "text": "cat a 0", "page": "b"}]
    write_lines(folder / "corpus.jsonl", *map(json.dumps, rows))
    save_bi_encoder(tmp_path / "model")
    recipe = MiningRecipe(str(tmp_path / "out.jsonl"), (Source(str(folder), domain="pets"),), depth=8, random=0)
    mine(replace(recipe, retriever=str(tmp_path / "model")))

    (group,) = read_groups(tmp_path / "out.jsonl")
    assert set(group.candidates) == {"a0", "b0", "b1", "b2", "c"}
    assert group.domain == group.area == "pets"
    assert set(group.scores) == {"bm25", "bm25_share", "retriever"}
    assert max(group.scores["bm25_share"]) <= 1
    assert max(group.scores["retriever"]) <= 1.0001
    mine(recipe)
    (group,) = read_groups(tmp_path / "out.jsonl")
    assert set(group.candidates) == {"a0", "b0", "b1", "b2"}


def words(group: Group) -> str:
    """Returns the query of a group without case and question marks."""
    return group.query.lower().strip("?")
