"""The files that `evaluate` writes: whole, readable again, and never over results of something else."""

import json
import resource
from pathlib import Path

import pytest
from support.collections import write_collection, write_lines, write_run_lines
from support.evaluation import DOCUMENTS, QRELS, QUERIES, RUN, evaluate, write_judged
from support.models import save_cross_encoder
from support.training import contents

from bandrank_training.__main__ import main
from bandrank_training.collection import read_run
from bandrank_training.results import read_evaluation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_judged(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_cross_encoder(tmp_path / "scorer")


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


def test_results_of_older_versions_are_read(folder: Path, model: Path) -> None:
    """Older results lack the model, the dtype and the digests, and the same command may replace them."""
    assert evaluate(folder, model, "--pool") == 0
    (result,) = (folder / "out").glob("*.json")
    content, evaluation = result.read_bytes(), read_evaluation(result)
    unknown = {"model", "weights", "dtype", "judgements_digest", "candidates_digest"}
    kept = {name: value for name, value in json.loads(content).items() if name not in unknown}
    result.write_text(json.dumps(kept), encoding="utf-8")

    assert read_evaluation(result).benchmark == evaluation.benchmark
    assert read_evaluation(result).values == evaluation.values
    assert evaluate(folder, model, "--pool") == 0
    assert result.read_bytes() == content


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
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))  # the ranking takes 150 bytes, the values more
    try:
        assert main(command) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert [path.name for path in (folder / "out").iterdir()] == there
    assert not_written in capsys.readouterr().err
    assert main(command) == 0
