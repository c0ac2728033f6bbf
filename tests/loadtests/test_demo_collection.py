"""The demo's collection and its first stage."""

import gzip
import json
from pathlib import Path

import pytest
from demo_collection import DemoError, FirstStage, load_collection

SMALL = Path(__file__).resolve().parents[1] / "data" / "demo"


def test_search_returns_the_best_first_and_no_more_than_asked() -> None:
    """More matching words rank higher, stems match, and passages that share no word are not found."""
    first_stage = FirstStage({"p1": "tea kettles", "p2": "tea cups", "p3": "a kettle for tea, boxed", "p4": "bicycles"})

    assert first_stage.search("kettle", 5) == ["p1", "p3"]
    assert set(first_stage.search("tea", 5)) == {"p1", "p2", "p3"}
    assert len(first_stage.search("tea", 2)) == 2
    assert first_stage.search("???", 5) == first_stage.search("what is it?", 5) == []


def test_the_small_collection_is_well_formed() -> None:
    """Ids are unique, every judged id exists, every question is judged, nothing is empty."""
    passages = [json.loads(line) for line in (SMALL / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    questions = [json.loads(line) for line in (SMALL / "queries.jsonl").read_text(encoding="utf-8").splitlines()]
    collection = load_collection(SMALL)

    assert len({passage["_id"] for passage in passages}) == len(passages) == len(collection.passages) >= 50
    assert len({question["_id"] for question in questions}) == len(questions) == len(collection.questions) >= 25
    assert len({passage["text"] for passage in passages}) == len(passages)
    assert all(row["text"].strip() for row in passages + questions)


def test_the_small_collection_leaves_something_to_re_rank() -> None:
    """BM25 finds every answer among its first 20, but does not put all of them first."""
    collection = load_collection(SMALL)
    first_stage = FirstStage(collection.passages)
    runs = {question_id: first_stage.search(text, 20) for question_id, text in collection.questions.items()}
    first = [collection.is_relevant(question_id, run[0]) for question_id, run in runs.items()]

    assert all(any(collection.is_relevant(question_id, p) for p in run) for question_id, run in runs.items())
    assert 0.4 < sum(first) / len(first) < 0.8


def test_a_collection_may_be_compressed_and_questions_without_a_relevant_passage_are_left_out(tmp_path: Path) -> None:
    """All files may end in .gz, and the split test2k is preferred to test."""
    write(tmp_path, "corpus.jsonl.gz", '{"_id": "p1", "title": "Tea", "text": "hot"}\n{"_id": "p2", "text": "cold"}\n')
    write(tmp_path, "queries.jsonl.gz", '{"_id": "q1", "text": "tea?"}\n{"_id": "q2", "text": "ice?"}\n')
    write(tmp_path, "qrels/test2k.tsv.gz", "query-id\tcorpus-id\tscore\nq1\tp1\t2\nq1\tp2\t-1\nq2\tp2\t0\n")
    write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq2\tp2\t1\n")

    collection = load_collection(tmp_path)

    assert collection.split == "test2k"
    assert collection.passages == {"p1": "Tea hot", "p2": "cold"}
    assert collection.questions == {"q1": "tea?"}
    assert collection.judgements == {"q1": {"p1": 2, "p2": -1}}
    assert load_collection(tmp_path, "test").questions == {"q2": "ice?"}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\tp9\t1\n", "p9"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq9\tp1\t1\n", "q9"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\tp1\t0\n", "no question"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\tp1\n", "cannot read"),
        ("corpus.jsonl", "not json\n", "cannot read"),
        ("queries.jsonl", '{"id": "q1"}\n', "_id"),
    ],
)
def test_a_broken_collection_is_refused_with_its_reason(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """A judgement of an unknown id, or a file of another format, ends the demo before anything is measured."""
    write(tmp_path, "corpus.jsonl", '{"_id": "p1", "text": "hot"}\n')
    write(tmp_path, "queries.jsonl", '{"_id": "q1", "text": "tea?"}\n')
    write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    assert load_collection(tmp_path).questions == {"q1": "tea?"}
    write(tmp_path, name, text)

    with pytest.raises(DemoError, match=complaint):
        load_collection(tmp_path)


def test_a_folder_without_the_split_is_refused(tmp_path: Path) -> None:
    """The message names the splits that were looked for."""
    with pytest.raises(DemoError, match="test2k,test,dev"):
        load_collection(tmp_path)
    with pytest.raises(DemoError, match="train"):
        load_collection(SMALL, "train")


def test_a_sample_depends_on_the_seed_alone() -> None:
    """The same seed draws the same questions, never one twice, never more than there are."""
    collection = load_collection(SMALL)

    assert collection.sample(10, seed=1) == collection.sample(10, seed=1) != collection.sample(10, seed=2)
    assert len(set(collection.sample(10, seed=1))) == 10
    assert sorted(collection.sample(1000, seed=1)) == sorted(collection.questions)


def write(folder: Path, name: str, text: str) -> None:
    """Writes a file of the collection, compressed if its name says so."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
