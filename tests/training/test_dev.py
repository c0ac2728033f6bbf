"""Measures on dev groups during training, and the plot of a run."""

import random
from pathlib import Path
from xml.etree import ElementTree as ET

import ir_measures
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.collections import write_collection
from support.models import tiny_cross_encoder
from support.scorers import loaded, lookup

from bandrank_training.dev import CUTOFF, DevSet, ndcg
from bandrank_training.groups import BadGroups, Group, write_groups
from bandrank_training.plot import plot_log
from bandrank_training.scoring import OfflineScorer


@settings(max_examples=60)
@given(labels=st.lists(st.integers(-1, 3), min_size=1, max_size=15), cutoff=st.sampled_from([1, 3, CUTOFF]))
def test_ndcg_is_that_of_ir_measures(labels: list[int], cutoff: int) -> None:
    """Labels may be negative, and a ranking without a relevant candidate has an nDCG of 0."""
    qrels = [ir_measures.Qrel("q", f"d{place}", label) for place, label in enumerate(labels)]
    run = [ir_measures.ScoredDoc("q", f"d{place}", -float(place)) for place in range(len(labels))]
    expected = ir_measures.calc_aggregate([ir_measures.nDCG @ cutoff], qrels, run)[ir_measures.nDCG @ cutoff]

    assert ndcg(labels, cutoff) == pytest.approx(expected, abs=1e-9)


def dev_set(folder: Path, *groups: Group) -> DevSet:
    """Returns a dev set of these groups, in which the id of a candidate is its text."""
    for group in groups:
        write_collection(Path(group.collection), documents={text: text for text in group.candidates})
    write_groups(folder / "dev.jsonl", groups)
    return DevSet.read(folder / "dev.jsonl")


def measured(dev: DevSet, **scores: float) -> float:
    """Measures a scorer that scores each text by its first word."""
    return dev.measure(OfflineScorer.in_training(loaded(lookup(**scores))))


def test_collections_count_alike(tmp_path: Path) -> None:
    """Collections weigh the same, however many groups they have; groups without a relevant candidate do not count."""
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    words = ["man", "she", "you"]
    dev = dev_set(
        tmp_path,
        Group(one, "who", words, [1, 0, 0], {}),
        Group(one, "what", words, [0, 1, 0], {}),
        Group(one, "which", words, [0, 0, 0], {}),
        Group(one, "which", words, None, {}),
        Group(other, "who", words, [0, 0, 2], {}),
    )

    assert len(dev.groups) == 3
    second, third = 0.6309297535714575, 0.5  # 1 / log2(3), 1 / log2(4)
    assert measured(dev, man=3.0, she=2.0, you=1.0) == pytest.approx(((1 + second) / 2 + third) / 2)


def test_a_tie_counts_against_the_scorer(tmp_path: Path) -> None:
    """Groups name the relevant candidate first, so equal scores for all must not count as a perfect ranking."""
    dev = dev_set(tmp_path, Group(str(tmp_path / "one"), "who", ["man", "she", "you"], [1, 0, 0], {}))

    assert measured(dev) == pytest.approx(0.5)
    assert measured(dev, man=1.0) == 1.0


def test_scores_of_the_groups_are_added(tmp_path: Path) -> None:
    """The groups' scores are added to the scorer's with a weight; a group that lacks them is an error."""
    group = Group(str(tmp_path / "one"), "who", ["man", "she"], [1, 0], {"other": [4.0, 1.0]})
    dev = dev_set(tmp_path, group)
    offline = OfflineScorer.in_training(loaded(lookup(she=2.0)))

    half = 0.6309297535714575  # 1 / log2(3)
    assert [dev.measure(offline, {"other": weight}) for weight in (0.6, 0.7)] == [pytest.approx(half), 1.0]
    with pytest.raises(BadGroups, match=r"no scores of \['mix-b'\] for 'who'; there are \['other'\]"):
        dev.measure(offline, {"mix-b": 1.0})


def test_measuring_changes_nothing(tmp_path: Path) -> None:
    rng = random.Random(0)
    words = rng.sample(["man", "she", "you", "he", "it"], 5)
    dev = dev_set(tmp_path, Group(str(tmp_path / "one"), "who", words, [0, 0, 1, 0, 0], {}))
    scorer = tiny_cross_encoder().train()
    offline = OfflineScorer.in_training(loaded(scorer))

    assert 0 < dev.measure(offline) == dev.measure(offline) <= 1
    assert scorer.training
    assert all(parameter.requires_grad for parameter in scorer.parameters())


def test_a_dev_set_without_a_relevant_candidate_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadGroups, match=r"dev\.jsonl: no group with a relevant candidate to measure with"):
        dev_set(tmp_path, Group(str(tmp_path / "one"), "who", ["man"], [0], {}))


@pytest.mark.parametrize("measured_at", [[], [50, 100, 120]])
def test_a_log_is_drawn(tmp_path: Path, measured_at: list[int]) -> None:
    rng = random.Random(0)
    log: list[dict[str, float]] = [{"step": step, "loss": rng.random()} for step in range(1, 121)]
    log += [{"step": step, "dev": rng.random()} for step in measured_at]
    plot_log(log, tmp_path / "training.svg")

    root = ET.parse(tmp_path / "training.svg").getroot()  # noqa: S314  # our own file
    lines = {element.get("id", "") for element in root.iter() if element.get("id", "").startswith("line2d")}
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {element.get("id") for element in root.iter()} >= ({"axes_1", "axes_2"} if measured_at else {"axes_1"})
    assert ("axes_2" in {element.get("id") for element in root.iter()}) == bool(measured_at)
    assert lines
