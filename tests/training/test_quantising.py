"""`quantise`, through the command line: what it measures, and the mark that it writes or takes back."""

import random
from pathlib import Path

import pytest
from support.collections import write_collection
from support.models import random_text, tiny_cross_encoder
from support.native import needs_native
from support.training import corpus_reads, saved

from bandrank.models.checkpoint import Precision, load_precision, save_precision
from bandrank.models.loading import load_model
from bandrank.models.quantised import linear_layers
from bandrank_training import progress, quantising
from bandrank_training.__main__ import main
from bandrank_training.quantising import Row
from bandrank_training.scoring import Question
from bandrank_training.sensitivity import MOST, changes_of_layers

DOCUMENTS = {f"d{number}": random_text(random.Random(number), 5 + number) for number in range(12)}
# Words of the documents themselves, so that BM25 finds some; q9 has none, and is not judged.
QUERIES = {f"q{number}": " ".join(DOCUMENTS[f"d{number}"].split()[:3]) for number in range(1, 6)} | {"q9": "zzzz"}
QRELS = {f"q{number}": {f"d{number}": 1} for number in range(1, 6)} | {"q8": {"d8": 1}}  # q8 has no text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A collection and a checkpoint."""
    write_collection(tmp_path / "tiny", documents=DOCUMENTS, queries=QUERIES, qrels=QRELS)
    saved(tmp_path / "scorer", tiny_cross_encoder())
    return tmp_path


def quantise(folder: Path, *more: str) -> int:
    return main(["quantise", str(folder / "scorer"), "--dev", str(folder / "tiny"), *more])


@needs_native
def test_a_checkpoint_that_loses_little_is_marked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table says what changes; the scores do change, which proves that int8 was computed."""
    monkeypatch.setattr(quantising, "MARGIN", 1.0)
    read = corpus_reads(monkeypatch)

    assert quantise(folder) == 0

    assert read == ["tiny"]
    assert load_precision(folder / "scorer").fit == ("int8",)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny"))
    name, queries, exact, near, change, p, overlap, tau, largest, typical, spread = (
        part.strip() for part in line.split("|")[1:-1]
    )
    assert (name, queries) == ("tiny", "5")
    assert float(near) - float(exact) == pytest.approx(float(change), abs=2e-4)
    assert 0.5 < float(overlap) <= 1
    assert 0.5 < float(tau) <= 1
    assert 0 <= float(p) <= 1
    assert 0 < float(typical) < float(largest) < float(spread)


def test_a_single_candidate_has_nothing_to_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no query has more, nothing can be measured; its Kendall's tau is 1, not NaN."""
    assert quantise(folder, "--dtype", "bfloat16", "--depth", "1") == 2
    assert "tiny test: BM25 finds no relevant document beside a worse one" in capsys.readouterr().err
    documents, qrels = DOCUMENTS | {"d": "zzzz"}, QRELS | {"q9": {"d": 1}}
    write_collection(folder / "tiny", documents=documents, queries=QUERIES, qrels=qrels)

    assert quantise(folder, "--dtype", "bfloat16") == 0
    assert " nan " not in capsys.readouterr().out


@needs_native
def test_a_checkpoint_that_loses_too_much_loses_its_mark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_precision(folder / "scorer", Precision(("int8",)))
    monkeypatch.setattr(quantising, "MARGIN", -1.0)

    assert quantise(folder, "--limit", "2") == 1

    assert load_precision(folder / "scorer").fit == ()


@needs_native
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the disk is full")])
def test_what_is_not_measured_to_its_end_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """While it is measured, a checkpoint keeps its mark and its list of float32 layers: a kill gives nothing back."""
    before = Precision(("int8",), ("encoder.layers.0.qkv",))
    save_precision(folder / "scorer", before)

    reached = []

    def interrupted(*_: object) -> Row:
        reached.append(error)
        assert load_precision(folder / "scorer") == before
        raise error

    monkeypatch.setattr(quantising, "_compare", interrupted)

    assert quantise(folder) in {2, 130}

    assert reached
    assert load_precision(folder / "scorer") == before


@needs_native
def test_a_mark_that_cannot_be_set_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not after minutes of measuring layers, as in a folder that may only be read."""
    (folder / "scorer" / "config.json.partial").mkdir()

    assert quantise(folder) == 2

    told = capsys.readouterr()
    assert "config.json.partial" in told.err
    assert not told.out


@needs_native
def test_each_dtype_has_a_mark_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result of one dtype neither sets nor removes the mark of another."""
    monkeypatch.setattr(quantising, "MARGIN", 1.0)
    assert quantise(folder, "--dtype", "bfloat16") == 0
    assert "| | queries | float32 | bfloat16 |" in capsys.readouterr().out
    assert load_precision(folder / "scorer").fit == ("bfloat16",)
    assert quantise(folder) == 0
    assert load_precision(folder / "scorer").fit == ("bfloat16", "int8")
    monkeypatch.setattr(quantising, "MARGIN", -1.0)
    assert quantise(folder) == 1
    assert load_precision(folder / "scorer").fit == ("bfloat16",)


@needs_native
def test_layers_that_lose_too_much_stay_in_float32(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One layer has a large weight for an input that is always zero: in float32 it counts for nothing, in int8 it
    leaves only a few steps to all others. The other layers compute in int8, and the list from before is replaced.
    """
    monkeypatch.setattr(quantising, "MARGIN", 1.0)
    scorer = tiny_cross_encoder()
    block = scorer.encoder.layers[1]
    block.up.weight.data[0], block.up.bias.data[0] = 0, -50
    block.down.weight.data[:, 0] = 1000
    saved(folder / "scorer", scorer)
    save_precision(folder / "scorer", Precision(("int8", "bfloat16"), ("encoder.layers.0.qkv",)))

    assert quantise(folder) == 0

    assert load_precision(folder / "scorer") == Precision(("bfloat16", "int8"), ("encoder.layers.1.down",))
    printed = capsys.readouterr().out
    assert "encoder.layers.1.down stays in float32: alone it changes scores by" in printed
    assert printed.count("stays in float32") == 1


@needs_native
def test_the_layer_that_changes_scores_most_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all layers in int8, the one that changes scores most is named, and each has a share of its own. A log says
    how far the command has got.
    """
    monkeypatch.setattr(progress, "EVERY_S", 0)
    quantise(folder)
    said = capsys.readouterr()
    assert "all 8 layers in int8: most is changed by encoder.layers." in said.out
    assert "layers in int8: 3 of 8\n" in said.err
    assert "tiny in int8: 4 of 4\n" in said.err
    model = load_model(str(folder / "scorer"))
    questions = [Question(QUERIES["q1"], list(DOCUMENTS.values()))]

    changes = changes_of_layers(model, questions)

    assert list(changes) == list(linear_layers(model.scorer))
    assert all(0 < each < MOST for each in changes.values())
    assert len(set(changes.values())) == len(changes)
    assert model.scorer.exact_layers == frozenset()


@pytest.mark.parametrize(("change", "passes"), [(0.01, True), (0.0, True), (-0.003, True), (-0.0031, False)])
def test_the_margin_is_three_thousandths(change: float, passes: bool) -> None:
    """The margin is in nDCG@10, and limits losses but not gains."""
    assert Row("c", [0.0], [change], 1, 1, 0, 0, 1).passes == passes


@pytest.mark.parametrize(("changed", "passes"), [(1, True), (4, False)])
def test_one_query_of_forty_may_lose_by_chance(changed: int, passes: bool) -> None:
    """A loss beyond the margin that comes from one query may be chance; one that comes from several is not."""
    nears = [0.5] * changed + [0.9] * (40 - changed)
    row = Row("c", [0.9] * 40, nears, 1, 1, 0, 0, 1)

    assert sum(row.changes) / 40 < -0.003
    assert row.passes == passes


def test_what_cannot_be_marked_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantise", str(folder / "tiny"), "--dev", str(folder / "tiny")]) == 2
    assert "config.json" in capsys.readouterr().err
    write_collection(folder / "none", documents=DOCUMENTS, queries=QUERIES, qrels={"q9": {"d1": 1}})
    assert main(["quantise", str(folder / "scorer"), "--dev", str(folder / "none"), "--dtype", "bfloat16"]) == 2
    assert "none test: BM25 finds no candidate of a judged query" in capsys.readouterr().err
    write_collection(folder / "others", documents=DOCUMENTS, queries=QUERIES, qrels={"q1": {"D1": 1}})
    assert main(["quantise", str(folder / "scorer"), "--dev", str(folder / "others"), "--dtype", "bfloat16"]) == 2
    assert "others test: BM25 finds no relevant document" in capsys.readouterr().err
    monkeypatch.setattr(quantising, "why_not_quantised", lambda _: "there is no compiler")
    assert quantise(folder) == 2
    assert "cannot be computed in int8: there is no compiler" in capsys.readouterr().err
    assert load_precision(folder / "scorer") == Precision()
