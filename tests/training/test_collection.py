"""Collections and runs on disk: how they are read, and the errors for files that cannot be."""

import gzip
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.collections import write_collection, write_lines

from bandrank_training.collection import BadCollection, documents_of, open_collection, read_run

DOCUMENTS = {"d1": "the man", "d2": "she\u2028he\x85\r who", "d3": ""}
QUERIES = {"q1": "who", "q2": "was it"}
QRELS = {"q1": {"d1": 2, "d3": 0}, "q2": {"d2": -1}}

READ: dict[str, Callable[[Path], Any]] = {
    "corpus.jsonl": lambda folder: documents_of(open_collection(folder)),
    "queries.jsonl": lambda folder: open_collection(folder).queries(),
    "qrels/test.tsv": lambda folder: open_collection(folder).qrels("test"),
    "run.trec": lambda folder: read_run(folder / "run.trec"),
    "run.trec.gz": lambda folder: read_run(folder / "run.trec.gz"),
    "queries.jsonl.gz": lambda folder: open_collection(folder).queries(),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_collection_is_read_as_it_was_written(tmp_path: Path, compressed: bool, as_text: bool) -> None:
    """A text may contain characters that other readers take for the end of a line."""
    write_collection(tmp_path / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels=QRELS, compressed=compressed)
    collection = open_collection(str(tmp_path / "tiny") if as_text else tmp_path / "tiny")

    assert collection.name == "tiny"
    assert dict(collection.documents()) == DOCUMENTS
    assert collection.queries() == QUERIES
    assert collection.qrels("test") == QRELS


def test_a_title_comes_before_the_text(tmp_path: Path) -> None:
    write_collection(tmp_path)
    rows = ['{"_id": 7, "title": " Men ", "text": "a man"}', '{"_id": "8", "title": " ", "text": "she"}']
    write_lines(tmp_path / "corpus.jsonl", *rows, '{"_id": "9", "title": null, "text": "he"}')

    assert list(open_collection(tmp_path).documents()) == [("7", "Men a man"), ("8", "she"), ("9", "he")]


def test_a_text_that_is_null_is_empty(tmp_path: Path) -> None:
    """Tables with a missing cell are exported with null, which must not become the word None."""
    write_lines(write_collection(tmp_path) / "corpus.jsonl", '{"_id": "d1", "title": null, "text": null}')

    assert list(open_collection(tmp_path).documents()) == [("d1", "")]


@pytest.mark.parametrize("header", [[], ["query-id\tcorpus-id\tscore"], ["", "qid iter docid rel"], ["#Topic\td\tx"]])
@pytest.mark.parametrize(
    "lines",
    [
        ["q1\td1\t2", "q1\td 2\t0", "q2\td1\t-1"],
        ["q1\td1\t2.0", "q1\td 2\t0.0", "q2\td1\t-1.0"],
        ["q1\t0\td1\t2", "q1\tQ0\td 2\t0", "q2\t0\td1\t-1"],
        ["q1 0 d1 2", "q1\t0\td 2\t0", "q2  0  d1  -1\r"],
    ],
)
def test_judgements_are_read_in_each_form(tmp_path: Path, header: list[str], lines: list[str]) -> None:
    """BEIR's three columns and TREC's four are read, with or without a header, and so are labels such as 2.0."""
    write_lines(write_collection(tmp_path) / "qrels" / "test.tsv", *header, *lines)

    assert open_collection(tmp_path).qrels("test") == {"q1": {"d1": 2, "d 2": 0}, "q2": {"d1": -1}}


@pytest.mark.parametrize(
    "line",
    ["q1\td1\t0.5", "q1 d1 1", "q1\t1", "q1\td1\tx\ty\t1", "q1\td1\tnan", "q1 0 0 d1 1", "q1\td1\thigh", "q1 0 d1 no"],
)
def test_a_first_line_that_does_not_name_its_columns_is_no_header(tmp_path: Path, line: str) -> None:
    """A malformed first line is an error, because a judgement that is taken for a header would be lost."""
    write_lines(write_collection(tmp_path) / "qrels" / "test.tsv", line, "q1\td2\t1")

    with pytest.raises(
        BadCollection, match=r"test\.tsv, line 1: expected a query id, a document id and a whole number"
    ):
        open_collection(tmp_path).qrels("test")


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("corpus.jsonl", ['{"_id": "1", "text": "man"}', '{"_id": "2", "text": ""}']),
        ("queries.jsonl", ['{"_id": "1", "text": "man"}', '{"_id": "2", "text": ""}']),
        ("qrels/test.tsv", ["query-id\tcorpus-id\tscore", "q\td\t1"]),
        ("run.trec", ["q Q0 d 1 1 t", "q Q0 e 2 0 t"]),
    ],
)
def test_blank_lines_are_left_out(tmp_path: Path, name: str, lines: list[str]) -> None:
    write_lines(write_collection(tmp_path) / name, *lines)
    expected = READ[name](tmp_path)
    write_lines(tmp_path / name, "", lines[0], " ", "\r", lines[1], "", "\t")

    assert expected
    assert READ[name](tmp_path) == expected


def test_lines_are_counted_with_the_blank_ones(tmp_path: Path) -> None:
    """The line number in a message is the one that an editor shows."""
    write_lines(write_collection(tmp_path) / "qrels" / "test.tsv", "", "q\td\t1", "", "q\td\thigh")

    with pytest.raises(BadCollection, match=r"test\.tsv, line 4: "):
        open_collection(tmp_path).qrels("test")


@pytest.mark.parametrize(
    ("name", "line"), [("corpus.jsonl", '{"_id": "1", "text": ""}'), ("run.trec.gz", "q Q0 d 1 1 t")]
)
def test_a_byte_order_mark_is_skipped(tmp_path: Path, name: str, line: str) -> None:
    """Editors on Windows write a byte order mark, with which the first document of a run would belong to no query."""
    write_collection(tmp_path)
    write_lines(tmp_path / name, line)
    expected = READ[name](tmp_path)
    write_lines(tmp_path / name, "\ufeff" + line)

    assert READ[name](tmp_path) == expected


def test_only_the_wanted_documents_are_kept(tmp_path: Path) -> None:
    """An id that the corpus lacks is left out; `most` keeps the first documents."""
    collection = open_collection(write_collection(tmp_path, documents=DOCUMENTS))

    assert documents_of(collection, {"d1", "d9"}) == {"d1": "the man"}
    assert list(documents_of(collection, most=2)) == ["d1", "d2"]


@pytest.mark.parametrize("name", ["run.trec", "run.trec.gz"])
def test_a_run_is_read(tmp_path: Path, name: str) -> None:
    path = write_lines(tmp_path / name, "q1 Q0 d1 1 2.5 bm25", "q1\tQ0\td3\t2\t-1e3\tbm25", "q2 Q0 d2 1 0 bm25")

    assert read_run(path) == {"q1": {"d1": 2.5, "d3": -1000.0}, "q2": {"d2": 0.0}}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("corpus.jsonl", '{"_id": "d1"}'),
        ("corpus.jsonl", '["d1", "text"]'),
        ("corpus.jsonl", '{"_id": "d1", "text": "the'),
        ("corpus.jsonl", r'{"_id": "d\u00001", "text": "the"}'),
        ("corpus.jsonl", "[" * 100_000),
        ("corpus.jsonl", r'{"_id": "d1", "text": "\ud800"}'),
        ("corpus.jsonl", '{"_id": "d1", "text": ["the", "a"]}'),
        ("corpus.jsonl", '{"_id": "d1", "text": "the", "title": NaN}'),
        ("queries.jsonl", '{"_id": null, "text": "who"}'),
        ("queries.jsonl", '{"text": "who"}'),
        ("queries.jsonl.gz", "who"),
        ("qrels/test.tsv", "q1\td1"),
        ("qrels/test.tsv", "q1\td1\thigh"),
        ("qrels/test.tsv", "q\0\td1\t1"),
        ("qrels/test.tsv", "q1 d1 1"),
        ("qrels/test.tsv", "q1\td1\t0.5"),
        ("qrels/test.tsv", "q1\td1\t2147483647"),
        ("qrels/test.tsv", "q1\t0\td1\tx\t1"),
        ("run.trec", "q1 Q0 d1 1 2.5"),
        ("run.trec", "q1 Q0 d\0 1 2.5 bm25"),
        ("run.trec", "q1 Q0 d1 1 high bm25"),
        ("run.trec", "q1 Q0 d1 1 nan bm25"),
        ("run.trec", "q Q0 d 2 0 bm25"),
        ("run.trec.gz", "q Q0"),
        ("corpus.jsonl", "\udcff"),  # a byte that is not UTF-8
        ("qrels/test.tsv", "\udcff"),
        ("run.trec", "\udcff"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, name: str, line: str) -> None:
    good = {"corpus": '{"_id": "d", "text": ""}', "queries": '{"_id": "q", "text": ""}', "qrels/test": "q\td\t1"}
    write_collection(tmp_path)
    if name.endswith(".jsonl.gz"):
        (tmp_path / name.removesuffix(".gz")).unlink()
    write_lines(tmp_path / name, good.get(name.split(".", maxsplit=1)[0], "q Q0 d 1 1 tag"), line)

    with pytest.raises(BadCollection) as error:
        READ[name](tmp_path)

    assert str(error.value).startswith(f"{tmp_path / name}, line 2: ")


def test_judgements_are_not_taken_for_one_header(tmp_path: Path) -> None:
    """Some spreadsheets end lines as on old Macs."""
    (write_collection(tmp_path) / "qrels/test.tsv").write_bytes(b"query-id\tcorpus-id\tscore\rq\td\t1\r")

    with pytest.raises(BadCollection, match=r"test\.tsv, line 1: lines end in a carriage return"):
        open_collection(tmp_path).qrels("test")


@pytest.mark.parametrize("damage", [lambda c: c[:-12], lambda _: b"plain", lambda c: c[:12] + c[11:], lambda _: b""])
@pytest.mark.parametrize("name", ["queries.jsonl.gz", "run.trec.gz"])
def test_a_damaged_gz_file_is_named(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    """The file is cut short, was never compressed, has one byte too many, or has none."""
    write_collection(tmp_path)
    (tmp_path / "queries.jsonl").unlink()
    (tmp_path / name).write_bytes(damage(gzip.compress(b'{"_id": "q", "text": ""}\n' * 20)))

    with pytest.raises(BadCollection, match=name):
        READ[name](tmp_path)


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("corpus.jsonl", ['{"_id": 1, "text": "a"}', '{"_id": "1", "text": "b"}'], "two documents have the id '1'"),
        ("queries.jsonl", ['{"_id": "q", "text": "a"}', '{"_id": "q", "text": "b"}'], "two queries have the id 'q'"),
        ("qrels/test.tsv", ["q\td\t1", "q\td\t0"], "line 2: query 'q' and document 'd' were judged 1 before, and 0"),
    ],
)
def test_entries_of_one_id_that_differ_are_told(tmp_path: Path, name: str, lines: list[str], said: str) -> None:
    """If two entries of one id differ, nobody knows which one is meant; equal ones do no harm."""
    write_lines(write_collection(tmp_path) / name, lines[0], lines[0])
    once = len(READ[name](tmp_path))
    write_lines(tmp_path / name, *lines)

    assert once == 1
    with pytest.raises(BadCollection, match=rf"{said}.*; leave one of them out"):
        READ[name](tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCollection, match=r"nowhere is no folder; expected one in BEIR layout"):
        open_collection(tmp_path / "nowhere")
    with pytest.raises(BadCollection, match=r"has no corpus.jsonl\[.gz\]; expected"):
        list(open_collection(tmp_path).documents())
    with pytest.raises(BadCollection, match=r"has no qrels/dev.tsv\[.gz\]; expected.*; there are judgements of test"):
        open_collection(write_collection(tmp_path)).qrels("dev")
    with pytest.raises(BadCollection, match=r"bm25.trec: no such file"):
        read_run(tmp_path / "bm25.trec")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_of_a_file_and_its_compressed_form_none_is_chosen(tmp_path: Path, name: str) -> None:
    """Nobody knows which of the two is meant: one may be older."""
    path = write_collection(tmp_path) / name
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))

    with pytest.raises(BadCollection, match=f"has both {name} and {name}.gz; keep the one to read"):
        READ[name](tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("ir_datasets") is not None, reason="ir_datasets is installed")
def test_ir_datasets_is_asked_for() -> None:
    with pytest.raises(BadCollection, match="ir_datasets:beir/scifact needs the package: pip install ir_datasets"):
        open_collection("ir_datasets:beir/scifact")


def test_a_dataset_without_judgements_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In beir/scifact, for instance, only the subsets have judgements; the queries are still read."""
    query = SimpleNamespace(query_id="q1", default_text=lambda: "who")
    dataset = SimpleNamespace(has_queries=lambda: True, queries_iter=lambda: iter([query]), has_qrels=lambda: False)
    monkeypatch.setitem(sys.modules, "ir_datasets", ModuleType("ir_datasets"))
    monkeypatch.setattr(sys.modules["ir_datasets"], "load", lambda _: dataset, raising=False)
    collection = open_collection("ir_datasets:beir/scifact")

    assert (collection.name, collection.queries()) == ("beir-scifact", {"q1": "who"})
    with pytest.raises(BadCollection, match="ir_datasets:beir/scifact has no qrels; one of its subsets may have them"):
        collection.qrels("test")
