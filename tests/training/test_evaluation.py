"""`evaluate`, through the command line: what it re-ranks, measures, writes, and refuses."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.collections import write_collection, write_lines, write_run_lines
from support.disk import full_disk
from support.models import random_text, save_cross_encoder, tiny_cross_encoder
from support.scorers import loaded, lookup
from support.training import contents, corpus_reads, saved

from bandrank.models.fusion import Fusion
from bandrank_training.__main__ import main
from bandrank_training.collection import BadCollection, open_collection, read_run
from bandrank_training.errors import BadInput
from bandrank_training.evaluation import rerank
from bandrank_training.measures import MEASURES
from bandrank_training.results import read_evaluation
from bandrank_training.scoring import score_offline

# d2 is relevant and in no run; q3 has no candidates; q4 has nothing to find; q9 is not judged.
DOCUMENTS = {f"d{number}": random_text(random.Random(number), 5 + number) for number in range(6)}
QUERIES = {f"q{number}": random_text(random.Random(number), 3) for number in range(1, 10)}
QRELS = {"q1": {"d1": 2, "d2": 1}, "q2": {"d0": 1, "d5": 0}, "q3": {"d1": 1}, "q4": {"d3": 0}}
RUN = {"q1": {"d0": 1.0, "d1": 3.0, "d4": 2.0}, "q2": {"d5": 2.0, "d4": 1.0, "d0": 1.0}, "q9": {"d0": 1.0}}
# By hand, in the run's own order: q1 finds d1 first (ideal: d1, d2), q2 finds d0 third, after the tie with d4.
BY_HAND = {
    "q1": {"nDCG@10": 2 / (2 + 1 / math.log2(3)), "MRR@10": 1.0, "R@1": 1.0},
    "q2": {"nDCG@10": 1 / math.log2(4), "MRR@10": 1 / 3, "R@1": 0.0},
    "q3": dict.fromkeys(MEASURES, 0.0),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection, its run, and candidate lists."""
    write_collection(tmp_path / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels=QRELS)
    write_run_lines(tmp_path / "bm25.test.trec.gz", RUN)
    write_lines(tmp_path / "lists.tsv", "query-id\tcandidate-ids", "q1\td5 d1", "q2\td0", "q3\td0 d1 d4", "q8\td0")
    return tmp_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_cross_encoder(tmp_path / "scorer")


def evaluate(folder: Path, model: object, *more: object) -> int:
    arguments = ["evaluate", model, folder / "tiny", "--device", "cpu", "--out", folder / "out", *more]
    return main([str(argument) for argument in arguments])


def test_a_first_stage_is_measured_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Relevant documents that the run lacks count as not found, queries without candidates as 0; ties keep order."""
    assert evaluate(folder, "run", "--run", folder / "bm25.test.trec.gz") == 0

    evaluation = read_evaluation(folder / "out" / "tiny.test.run.bm25.json")
    assert evaluation.system == "bm25"
    assert str(evaluation.benchmark) == "tiny test, bm25.test.trec.gz top 100"
    assert list(evaluation.values) == ["q1", "q2", "q3"]
    for query_id, values in BY_HAND.items():
        assert evaluation.values[query_id] == pytest.approx(values)
    printed = capsys.readouterr()
    assert "MRR@10 0.4444, R@1 0.3333 (3 queries, 1 of them without candidates)" in printed.out
    assert printed.err == ""
    assert (folder / "out" / "tiny.test.run.bm25.trec").read_text().splitlines() == [
        "q1 Q0 d1 1 3.0 bm25",
        "q1 Q0 d4 2 2.0 bm25",
        "q1 Q0 d0 3 1.0 bm25",
        "q2 Q0 d5 1 2.0 bm25",
        "q2 Q0 d4 2 1.0 bm25",
        "q2 Q0 d0 3 1.0 bm25",
    ]


def test_results_of_another_run_file_are_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another run, or the same one cut at another depth, has other results; the same command can be run again."""
    command = ["evaluate", "run", str(folder / "tiny"), "--run", str(folder / "bm25.test.trec.gz"), "--tag", "bm25"]
    command += ["--out", str(folder / "kept")]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in (folder / "kept").iterdir()}

    assert main(command) == 0
    assert main([*command, "--depth", "2"]) == 2
    assert main([*command, "--run", str(write_run_lines(folder / "other.trec.gz", RUN))]) == 2
    message = "tiny.test.run.bm25.json has results of tiny test, bm25.test.trec.gz top 100; choose another --out"
    assert capsys.readouterr().err.count(message) == 2
    assert {path.name: path.read_bytes() for path in (folder / "kept").iterdir()} == before


@pytest.mark.parametrize("changed", ["judgements", "candidates"])
def test_results_of_others_of_the_same_names_are_not_written_over(
    folder: Path, model: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders and files of the same name may hold other judgements or candidates; their digests tell them apart."""
    assert evaluate(folder, model, "--candidates", folder / "lists.tsv") == 0
    before = contents(folder / "out")
    if changed == "judgements":
        write_collection(folder / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels=QRELS | {"q2": {"d5": 1}})
    else:
        write_lines(folder / "lists.tsv", "query-id\tcandidate-ids", "q1\td5 d1", "q2\td0", "q3\td0 d1 d5")

    assert evaluate(folder, model, "--candidates", folder / "lists.tsv") == 2

    message = f"tiny.test.candidates.scorer.json has results of other {changed} (digests "
    assert message in capsys.readouterr().err
    assert contents(folder / "out") == before
    assert evaluate(folder, model, "--candidates", folder / "lists.tsv", "--tag", "another") == 0
    lists = write_lines(folder / "lists.tsv", "q1\tunknown")
    assert evaluate(folder, model, "--candidates", lists, "--tag", "a", "--out", lists) == 2
    assert "File exists" in capsys.readouterr().err  # it is told before what is only told as candidates are scored


def test_results_of_another_model_are_not_written_over(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Models in folders of the same name have the same tag, and a first stage can be given that tag, too."""
    other, source = save_cross_encoder(folder / "other" / "scorer", seed=1), ["--run", folder / "bm25.test.trec.gz"]
    assert evaluate(folder, model, *source) == 0
    before = contents(folder / "out")

    assert evaluate(folder, other, *source) == 2
    assert evaluate(folder, "run", *source, "--tag", "scorer") == 2

    said = "scorer.json has results of another model, or of other weights of it; choose another --tag"
    assert capsys.readouterr().err.count(said) == 2
    assert contents(folder / "out") == before
    assert evaluate(folder, "run", *source) == 0
    assert evaluate(folder, model, *source, "--tag", "bm25") == 2


def test_results_in_another_dtype_are_not_written_over(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of two dtypes need two tags."""
    assert evaluate(folder, model, "--pool") == 0
    before = contents(folder / "out")
    assert evaluate(folder, model, "--pool", "--dtype", "bfloat16") == 2

    assert "scorer.json has results in float32, not in bfloat16; choose another --tag" in capsys.readouterr().err
    assert contents(folder / "out") == before
    assert evaluate(folder, model, "--pool", "--dtype", "bfloat16", "--tag", "bf16") == 0


def test_the_same_weights_in_another_folder_are_the_same_model(folder: Path, model: Path) -> None:
    """The results name the model's folder without the folders above it, which differ between machines."""
    assert evaluate(folder, model, "--pool") == 0
    (result,) = (folder / "out").glob("*.json")
    before = result.read_bytes()
    (folder / "moved").mkdir()

    assert evaluate(folder, model.rename(folder / "moved" / "scorer"), "--pool") == 0

    assert result.read_bytes() == before
    assert json.loads(before)["model"] == "scorer"
    assert str(folder) not in before.decode()


def test_candidates_that_are_all_relevant_are_told(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pools of judgements may name relevant documents alone, and then every order of them is perfect."""
    assert evaluate(folder, model, "--pool") == 0

    said = "all candidates of 2 of 3 queries are relevant: any order puts a relevant one first"
    assert said in capsys.readouterr().err


def test_the_corpus_is_read_once(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus may have millions of documents."""
    read = corpus_reads(monkeypatch)

    assert evaluate(folder, model, "--pool") == 0

    assert read == ["tiny"]


def test_ids_with_spaces_come_back(tmp_path: Path, model: Path) -> None:
    """Ids may be file names with spaces; a run with such ids can be read again."""
    qrels = {"query 1": {"User guide.pdf": 1, "d\u00a02": 0}, "q2": {"d\u00a02": 2}}
    texts, queries = {"User guide.pdf": "man", "d\u00a02": "she"}, {"query 1": "who", "q2": "what"}
    write_collection(tmp_path / "tiny", documents=texts, queries=queries, qrels=qrels)
    assert evaluate(tmp_path, model, "--pool") == 0
    written = tmp_path / "out" / "tiny.test.pool.scorer.trec"

    assert evaluate(tmp_path, "run", "--run", written, "--tag", "again") == 0

    assert {query_id: set(scores) for query_id, scores in read_run(written).items()} == {
        query_id: set(labels) for query_id, labels in qrels.items()
    }
    first, again = (
        read_evaluation(tmp_path / "out" / f"tiny.test.{name}.json") for name in ("pool.scorer", "run.again")
    )
    assert first.values == again.values


@pytest.mark.parametrize(
    ("most_bytes", "there", "not_written"),
    [(50, [], "tiny.test.run.bm25.trec"), (300, ["tiny.test.run.bm25.trec"], "tiny.test.run.bm25.json")],
)
def test_results_are_whole_or_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], most_bytes: int, there: list[str], not_written: str
) -> None:
    """Half a ranking would pass for a whole one, and the same command would refuse half of the values as those of
    something else. The error names the file that the full disk had no room for.
    """
    command = ["evaluate", "run", str(folder / "tiny"), "--run", str(folder / "bm25.test.trec.gz")]
    command += ["--out", str(folder / "out")]
    with full_disk(most_bytes):  # the ranking takes 150 bytes, the values more
        assert main(command) == 2

    assert [path.name for path in (folder / "out").iterdir()] == there
    assert not_written in capsys.readouterr().err
    assert main(command) == 0


@pytest.mark.parametrize(
    ("source", "expected", "stem"),
    [
        (["--run", "bm25.test.trec.gz"], {"q1": {"d0", "d1", "d4"}, "q2": {"d5", "d4", "d0"}}, "run"),
        (["--run", "bm25.test.trec.gz", "--depth", 2], {"q1": {"d1", "d4"}, "q2": {"d5", "d4"}}, "run"),
        (["--pool"], {"q1": {"d1", "d2"}, "q2": {"d0", "d5"}, "q3": {"d1"}}, "pool"),
        (["--candidates", "lists.tsv"], {"q1": {"d5", "d1"}, "q2": {"d0"}, "q3": {"d0", "d1", "d4"}}, "candidates"),
        (["--pool", "--limit", 1], {"q1": {"d1", "d2"}}, "pool"),
        (["--pool", "--min-relevance", 2], {"q1": {"d1", "d2"}}, "pool"),
    ],
)
def test_candidates_are_re_ranked(
    folder: Path, model: Path, source: list[Any], expected: dict[str, set[str]], stem: str
) -> None:
    """Only judged queries are ranked, by the model's scores; their candidates are those of a run, a pool or a list."""
    source = [folder / each if str(each).endswith(("gz", "tsv")) else each for each in source]
    assert evaluate(folder, model, *source) == 0

    run = read_run(folder / "out" / f"tiny.test.{stem}.scorer.trec")
    assert {query_id: set(scores) for query_id, scores in run.items()} == expected
    for scores in run.values():
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
    values = read_evaluation(folder / "out" / f"tiny.test.{stem}.scorer.json").values
    for query_id, scores in run.items():
        relevant = [QRELS[query_id].get(document_id, 0) >= 1 for document_id in scores]
        if "--min-relevance" not in source:
            assert values[query_id]["R@1"] == relevant[0]


def test_scores_are_those_of_the_dtype_that_was_asked_for(folder: Path, model: Path) -> None:
    """bfloat16 keeps 8 bits of a number, so scores are near those of float32 but not the same."""
    runs = []
    for dtype in ("float32", "bfloat16"):
        assert evaluate(folder, model, "--pool", "--dtype", dtype, "--tag", dtype) == 0
        runs.append(read_run(folder / "out" / f"tiny.test.pool.{dtype}.trec"))

    exact, rounded = ({(q, d): score for q, scores in run.items() for d, score in scores.items()} for run in runs)
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05, abs=0.05)


def test_the_least_relevance_is_kept_with_the_values(folder: Path) -> None:
    """With another `min_relevance`, MRR and R@1 are other measures."""
    assert evaluate(folder, "run", "--run", folder / "bm25.test.trec.gz", "--min-relevance", 2, "--tag", "a b/c") == 0

    path = folder / "out" / "tiny.test.run.a-b-c.json"
    assert json.loads(path.read_text())["means"]["MRR@10"] == 1.0
    evaluation = read_evaluation(path)
    assert (evaluation.system, evaluation.benchmark.min_relevance, list(evaluation.values)) == ("a-b-c", 2, ["q1"])


def test_ties_keep_the_order_given(tmp_path: Path) -> None:
    """Ids do not break ties, as they do not in an answer of the service."""
    ids = ["m", "z", "a", "10", "9", "Z"]
    words = {"m": "you", "z": "man", "a": "she", "10": "he", "9": "man", "Z": "it"}
    collection = open_collection(write_collection(tmp_path, documents=words, queries={"q": "who"}))
    scorer = score_offline(loaded(lookup(man=1.0)))

    assert dict(rerank(scorer, collection, {"q": ids})) == {
        "q": [("z", 1.0), ("9", 1.0), ("m", 0.0), ("a", 0.0), ("10", 0.0), ("Z", 0.0)]
    }


def test_a_score_that_is_nan_is_told(tmp_path: Path) -> None:
    collection = open_collection(write_collection(tmp_path / "tiny", documents={"d": "man"}, queries={"q": "who"}))

    with pytest.raises(BadInput, match="query 'who': the model gave a score that is not a number"):
        dict(rerank(score_offline(loaded(lookup(man=math.nan))), collection, {"q": ["d"]}))


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ({"q": ["d", "x", "y"]}, "tiny lacks 2 of 3 candidates, the first is x"),
        ({"q": ["d"], "q7": ["d"]}, "tiny lacks the texts of 1 queries, the first is q7"),
    ],
)
def test_texts_that_are_missing_are_told(tmp_path: Path, candidates: dict[str, list[str]], message: str) -> None:
    """Ranking without the missing texts would measure something else."""
    collection = open_collection(write_collection(tmp_path / "tiny", documents={"d": "man"}, queries={"q": "who"}))

    with pytest.raises(BadCollection, match=message):
        dict(rerank(score_offline(loaded(lookup())), collection, candidates))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda folder: ["run", folder / "tiny", "--pool"], "`run` is the order of a run file; it needs --run FILE"),
        (lambda folder: ["run", folder / "none", "--run", "x"], "none is no folder; expected one in BEIR layout"),
        (lambda folder: ["run", folder / "tiny", "--run", folder / "x.trec"], "x.trec: no such file"),
        (lambda folder: ["run", folder / "tiny", "--run", folder / "empty.trec"], "no candidates of a query of test"),
        (lambda folder: ["run", folder / "tiny", "--run", "x", "--split", "dev"], "has no qrels/dev.tsv"),
        (lambda folder: ["run", folder / "tiny", "--run", "x", "--min-relevance", 3], "no query has a document of"),
        (lambda folder: [folder / "none", folder / "tiny", "--pool"], "none: no such folder"),
        (lambda folder: [folder / "tiny", folder / "tiny", "--pool"], "tiny: no config.json"),
        (lambda _: ["run", "ir_datasets:x/y", "--run", "x"], "ir_datasets"),
        (
            lambda folder: [
                saved(folder / "x", tiny_cross_encoder(), Fusion(f"{folder}/x")),
                folder / "tiny",
                "--pool",
            ],
            "name one without a fusion",
        ),
    ],
)
def test_what_cannot_be_used_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: Callable[[Path], list[Any]], message: str
) -> None:
    write_lines(folder / "empty.trec")

    assert main(["evaluate", *map(str, arguments(folder)), "--out", str(folder / "out")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("bandrank_training: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not (folder / "out").exists()
