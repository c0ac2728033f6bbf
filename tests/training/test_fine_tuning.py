"""`fine-tune`: what it chooses, writes and refuses, given one's own judged queries."""

import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.collections import write_collection
from support.models import tiny_cross_encoder
from support.training import contents, saved, toy_documents

from bandrank.models import checkpoint
from bandrank.models.checkpoint import Precision
from bandrank.models.fusion import Fusion
from bandrank.models.loading import LoadedModel, load_model
from bandrank_training.__main__ import main
from bandrank_training.collection import open_collection
from bandrank_training.dev import DevSet
from bandrank_training.fine_tuning import Choice, choose, evidence
from bandrank_training.groups import read_groups
from bandrank_training.locking import locked
from bandrank_training.measures import judged

QUERIES = 25


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection whose queries are two words of their relevant document."""
    rng, documents = random.Random(0), toy_documents()
    relevant = [rng.choice(sorted(documents)) for _ in range(QUERIES)]
    queries = {f"q{n}": " ".join(rng.choices(documents[each].split(), k=2)) for n, each in enumerate(relevant)}
    qrels = {f"q{n}": {each: 1} for n, each in enumerate(relevant)}
    folder = tmp_path_factory.mktemp("own")
    return write_collection(folder, documents=documents, queries=queries, qrels=qrels, split="train")


@pytest.fixture
def ends(toy: Path) -> tuple[LoadedModel, LoadedModel, DevSet]:
    """A scorer, one that ranks the dev groups the other way round, and those groups."""
    start = load_model(str(toy / "cross_encoder"))
    weights = {name: -value if "classifier" in name else value for name, value in start.scorer.state_dict().items()}
    scorer = checkpoint.assemble(type(start.scorer), start.scorer.config, weights, source="the test")
    return start, replace(start, scorer=scorer), DevSet.read(toy / "dev.jsonl.gz")


def test_the_scorer_that_ranks_the_queries_set_apart_best_is_chosen(
    ends: tuple[LoadedModel, LoadedModel, DevSet], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The better scorer is chosen, whether it is the start or the trained one; the mean of both scores all alike.
    A terminal shows how far each measurement is.
    """
    one, other, dev = ends
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    first, choices = choose(one, other, dev)
    second, _ = choose(other, one, dev)

    assert [each.name for each in choices] == ["as it was", "the mean of both", "trained"]
    assert sum(first.values) == max(sum(each.values) for each in choices)
    assert {first.name, second.name} == {"as it was", "trained"}
    assert first.values == second.values
    assert capsys.readouterr().err.count("measuring:   0%") == 6


def test_a_scorer_that_is_no_better_for_it_stays(ends: tuple[LoadedModel, LoadedModel, DevSet]) -> None:
    start, _, dev = ends

    chosen, _ = choose(start, start, dev)

    assert chosen.name == "as it was"


def test_what_is_written_can_be_served(
    own: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fine-tuned model loads, and the queries that were set apart are not trained on."""
    out = tmp_path / "tuned"

    assert main(["fine-tune", str(own), "--start", str(toy / "cross_encoder"), "--out", str(out)]) == 0

    written = load_model(str(out))
    assert written.scorer.architecture == "cross_encoder"
    trained, apart = (
        {group.query for group in read_groups(out / name)} for name in ("groups.jsonl.gz", "dev.jsonl.gz")
    )
    collection = open_collection(str(own))
    asked = {collection.queries()[each] for each in judged(collection.qrels("train"), 1)}
    assert trained | apart == asked
    assert not trained & apart
    said = capsys.readouterr().out
    assert f"of {len(list(read_groups(out / 'dev.jsonl.gz')))} queries set apart" in said
    assert "flatter" not in said


def test_figures_that_flatter_are_told(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document answers all queries, so that those set apart ask for what was trained on."""
    documents, queries = toy_documents(), {"a": "she man", "b": "you man", "c": "who man"}
    qrels = {name: {"d0": 1} for name in queries}
    folder = write_collection(tmp_path / "own", documents=documents, queries=queries, qrels=qrels, split="train")

    assert main(["fine-tune", str(folder), "--start", str(toy / "cross_encoder"), "--out", str(tmp_path / "out")]) == 0

    assert "1 of the 1 queries set apart share a relevant document with queries to train on" in capsys.readouterr().out


def test_a_second_run_finds_the_first_done(own: Path, toy: Path, tmp_path: Path) -> None:
    """The second run mines and trains nothing, and writes the same model, with what `quantise` found of it. One at the
    same time as another is refused.
    """
    out = tmp_path / "tuned"
    command = ["fine-tune", str(own), "--start", str(toy / "cross_encoder"), "--out", str(out)]
    assert main(command) == 0
    checkpoint.save_precision(out, Precision(("int8",), ("encoder.layers.0.up",)))
    files = [out / "training" / "log.jsonl", out / "model.safetensors", out / "config.json"]
    first = [file.read_bytes() for file in files]

    with locked(out):
        assert main(command) == 2
    assert main(command) == 0

    assert [file.read_bytes() for file in files] == first


MINED = "what was mined (by the texts, the judgements, --split, --most-queries or --dtype)"
OPTIONS = ["--precision bfloat16", "--dtype bfloat16", "--most-queries 9"]


@pytest.mark.parametrize("change", ["a judgement", "a text", "the start", *OPTIONS])
def test_a_run_of_others_is_refused(
    own: Path, toy: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was mined and learnt from other judgements, texts or weights, or with other options, is not used. The
    finished run stays as it is, and the error names what differs by its options.
    """
    collection, start, out = tmp_path / "own", tmp_path / "start", tmp_path / "tuned"
    shutil.copytree(own, collection)
    shutil.copytree(toy / "cross_encoder", start)
    command = ["fine-tune", str(collection), "--start", str(start), "--out", str(out)]
    assert main(command) == 0
    before = finished(out)
    match change:
        case "a judgement":
            qrels = collection / "qrels" / "train.tsv"
            first = qrels.read_text(encoding="utf-8").splitlines()[1].split("\t")
            other = next(name for name, _ in open_collection(collection).documents() if name != first[1])
            qrels.write_text(qrels.read_text(encoding="utf-8") + f"{first[0]}\t{other}\t1\n", encoding="utf-8")
        case "a text":
            (corpus,) = collection.glob("corpus.jsonl")
            corpus.write_text(corpus.read_text(encoding="utf-8").replace("he", "she"), encoding="utf-8")
        case "the start":
            model = load_model(str(start))
            with torch.no_grad():
                next(iter(model.scorer.parameters())).mul_(1.5)
            checkpoint.save(model.scorer, start, tokenizer=start / "tokenizer.json")
    command += change.split() if change in OPTIONS else []

    assert main(command) == 2
    differs = {"the start": "the weights of --start", OPTIONS[0]: "--precision"}.get(change, MINED)
    said = f"holds another fine-tuning, which differs in {differs}; choose another --out, or delete {out}/training"
    assert said in capsys.readouterr().err
    assert finished(out) == before
    shutil.rmtree(out / "training")
    assert main(command) == 0


def finished(out: Path) -> dict[Path, bytes]:
    """Returns the files of a fine-tuning, without those that mining keeps for another run."""
    return {path: content for path, content in contents(out).items() if path.parent != out / "mined"}


def test_the_scores_stay_added_to_those_of_the_fast_scorer(own: Path, toy: Path, tmp_path: Path) -> None:
    fusion = Fusion(str(toy / "mix_encoder"), 0.5)
    saved(tmp_path / "start", tiny_cross_encoder(), fusion)

    assert main(["fine-tune", str(own), "--start", str(tmp_path / "start"), "--out", str(tmp_path / "tuned")]) == 0

    assert checkpoint.load_fusion(tmp_path / "tuned") == fusion


def test_candidates_that_are_all_relevant_are_told(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If all candidates are relevant, every order of them is perfect, and there is nothing to learn."""
    words = ["man", "she", "you", "who", "one", "her"]
    documents, queries = (
        {f"d{n}": word for n, word in enumerate(words)},
        {f"q{n}": each for n, each in enumerate(words)},
    )
    qrels = {f"q{n}": {f"d{n}": 1} for n in range(len(words))}
    folder = write_collection(tmp_path / "own", documents=documents, queries=queries, qrels=qrels, split="train")

    assert main(["fine-tune", str(folder), "--start", str(toy / "cross_encoder"), "--out", str(tmp_path / "out")]) == 2

    assert "no query has an irrelevant candidate: none was judged, and BM25 finds none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5], ", +0.5000 on one query, which tells little"),
        ([0.0, 0.0], ", for nothing was better"),
        (
            # t = 0.3 / (0.2 / sqrt(3)), p = 0.1217 with two degrees of freedom; twice that for the choice of two.
            [0.5, 0.1, 0.3],
            ", +0.3000 on the queries that chose it, p = 0.24 of a paired t test, corrected for the choice",
        ),
    ],
)
def test_the_evidence_for_a_choice_in_words(
    ends: tuple[LoadedModel, LoadedModel, DevSet], values: list[float], said: str
) -> None:
    before = Choice("as it was", ends[0].scorer, [], [0.0] * len(values))

    assert evidence(replace(before, name="trained", values=values), before) == said


def test_a_start_of_another_kind_is_refused(
    own: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The architecture of the start is checked before anything is mined."""
    command = ["fine-tune", str(own), "--start", str(toy / "bi_encoder"), "--out", str(tmp_path / "tuned")]

    assert main(command) == 2

    assert "is a bi_encoder; fine-tune takes a cross-encoder" in capsys.readouterr().err
    assert not (tmp_path / "tuned").exists()


@pytest.mark.parametrize("part", [".", "training"])
def test_the_start_is_not_written_over(
    own: Path, toy: Path, tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the result nor the files of the training replace the start: there would be no way back to it."""
    start = tmp_path / "mine" / part
    shutil.copytree(toy / "cross_encoder", start)
    before = contents(tmp_path / "mine")

    assert main(["fine-tune", str(own), "--start", str(start), "--out", str(tmp_path / "mine")]) == 2

    assert "is the folder of a model that is read; choose another" in capsys.readouterr().err
    assert contents(tmp_path / "mine") == before
