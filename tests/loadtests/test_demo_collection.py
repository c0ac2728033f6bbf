"""The demo's collection, its first stage and its measure."""

import gzip
import json
from pathlib import Path

import pytest
from demo_collection import DemoError, build_index, fts_query, load_collection, ndcg, search

SMALL = Path(__file__).resolve().parents[1] / "data" / "demo"


def test_ndcg_equals_the_value_worked_out_by_hand() -> None:
    """Linear gains over log2(rank + 1), divided by the best possible order."""
    relevance = {"a": 3, "b": 2, "c": 1}

    # (2/log2(2) + 0 + 3/log2(4) + 1/log2(5)) / (3/log2(2) + 2/log2(3) + 1/log2(4)) = 3.930677 / 4.761860
    assert ndcg(["b", "unjudged", "a", "c"], relevance) == pytest.approx(0.825450, abs=1e-6)
    assert ndcg(["a", "b", "c"], relevance) == 1.0


def test_ndcg_counts_what_the_first_stage_missed() -> None:
    """A relevant passage outside the ranking stays in the ideal: 1 of 2, at rank 1, is 1 / (1 + 1/log2(3))."""
    assert ndcg(["a"], {"a": 1, "missed": 1}) == pytest.approx(0.613147, abs=1e-6)


def test_ndcg_ends_at_the_cutoff() -> None:
    """Rank 10 counts, rank 11 does not, in the ranking and in the ideal."""
    others = [f"other-{i}" for i in range(10)]

    assert ndcg([*others[:9], "a"], {"a": 1}) == pytest.approx(0.289065, abs=1e-6)  # 1/log2(11)
    assert ndcg([*others, "a"], {"a": 1}) == 0.0
    assert ndcg(others, {f"other-{i}": 1 for i in range(10)} | {"an-eleventh": 1}) == 1.0


@pytest.mark.parametrize("relevance", [{}, {"a": 0}, {"a": -1}])
def test_ndcg_without_a_relevant_passage_is_zero(relevance: dict[str, int]) -> None:
    """Negative judgements gain nothing, and nothing relevant gives 0, not a division by zero."""
    assert ndcg(["a"], relevance) == 0.0
    assert ndcg([], relevance | {"b": 1}) == 0.0
    assert ndcg(["a", "b"], relevance | {"b": 1}) == pytest.approx(0.630930, abs=1e-6)  # 1/log2(3)


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is a B-tree?", '"b" OR "tree"'),
        ('say "hello" AND goodbye NEAR(me)', '"say" OR "hello" OR "goodbye" OR "near"'),
        ("to be or not to be", '"not"'),
        ("What is it?", '"what" OR "is" OR "it"'),
        ("snake_case snake", '"snake" OR "case"'),
        ("", ""),
        ('?! "" * ^', ""),
    ],
)
def test_a_question_becomes_its_quoted_words(question: str, expression: str) -> None:
    """Every word once and quoted; stop words only where there is nothing else; no word, no expression."""
    assert fts_query(question) == expression


@pytest.mark.parametrize(
    "question",
    [
        *('"', '""', "AND", "a OR", "NOT b", "NEAR(c d, 2)", "text:tea", "tea*", "^tea", "-tea", "(tea", "tea;--"),
        *("tea\0x", "naïve 東京 ½ ٣", "\N{HOT BEVERAGE} tea", "{tea} : + -"),
    ],
)
def test_no_question_breaks_the_search(question: str) -> None:
    """Operators, quotes and odd characters are never read as FTS5 syntax."""
    index = build_index({"p1": "green tea", "p2": "and or not near a c d text x"})

    assert set(search(index, question, 5)) <= {"p1", "p2"}
    assert ("tea" not in question) or "p1" in search(index, question, 5)


def test_search_returns_the_best_first_and_no_more_than_asked() -> None:
    """More matching words rank higher, ties keep the order of the corpus, stems match."""
    index = build_index({"p1": "tea kettles", "p2": "tea cups", "p3": "a kettle for tea", "p4": "bicycles"})

    assert search(index, "kettle", 5) == ["p1", "p3"]
    assert search(index, "tea", 5)[:2] == ["p1", "p2"]
    assert len(search(index, "tea", 2)) == 2
    assert search(index, "???", 5) == []


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
    index = build_index(collection.passages)
    runs = {question_id: search(index, text, 20) for question_id, text in collection.questions.items()}
    first = [collection.is_relevant(question_id, run[0]) for question_id, run in runs.items()]

    assert all(any(collection.is_relevant(question_id, p) for p in run) for question_id, run in runs.items())
    assert 0.4 < sum(first) / len(first) < 0.8


def test_a_collection_may_be_compressed_and_questions_without_a_relevant_passage_are_left_out(tmp_path: Path) -> None:
    """corpus, queries and qrels are read from .gz; test2k goes before test."""
    write(tmp_path, "corpus.jsonl.gz", '{"_id": "p1", "title": "Tea", "text": "hot"}\n{"_id": "p2", "text": "cold"}\n')
    write(tmp_path, "queries.jsonl.gz", '{"_id": "q1", "text": "tea?"}\n{"_id": "q2", "text": "ice?"}\n')
    write(tmp_path, "qrels/test2k.tsv.gz", "query-id\tcorpus-id\tscore\nq1\tp1\t2\nq1\tp2\t-1\nq2\tp2\t0\n")
    write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq2\tp2\t1\n")

    collection = load_collection(tmp_path)

    assert collection.split == "test2k"
    assert collection.passages == {"p1": "Tea. hot", "p2": "cold"}
    assert collection.excerpts == {"p1": "hot", "p2": "cold"}
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
    """A judgement of an unknown id, or a file of another form, ends the demo before anything is measured."""
    write(tmp_path, "corpus.jsonl", '{"_id": "p1", "text": "hot"}\n')
    write(tmp_path, "queries.jsonl", '{"_id": "q1", "text": "tea?"}\n')
    write(tmp_path, "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\tp1\t1\n")
    assert load_collection(tmp_path).questions == {"q1": "tea?"}
    write(tmp_path, name, text)

    with pytest.raises(DemoError, match=complaint):
        load_collection(tmp_path)


def test_a_folder_without_the_split_is_refused(tmp_path: Path) -> None:
    """The message names what was looked for."""
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
    """A file of the collection, compressed if its name says so."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
