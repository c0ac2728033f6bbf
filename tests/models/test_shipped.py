"""The checkpoints that come with the service: found by name, small, described, and able to tell what is relevant."""

import subprocess
import sys

import pytest

from bandrank.models.loading import load_model
from bandrank.models.shipped import FAST, names, shipped
from bandrank.settings import Settings
from bandrank_training.scoring import Question, score_offline

ACCURATE = Settings().model
MOST_BYTES = 54_000_000
QUESTIONS = {
    "how do bees find their way home?": [
        "Bees navigate by the position of the sun and by landmarks they remember.",
        "Honey is made from the nectar of flowers.",
        "The house stands at the end of a long way.",
    ],
    "side effects aspirin": [
        "Aspirin can irritate the stomach and, rarely, cause bleeding.",
        "Aspirin was first sold in 1899.",
        "Effects in the film were made by hand.",
    ],
    "who wrote the origin of species": [
        "On the Origin of Species was published by Charles Darwin in 1859.",
        "The species of a tree is told by its leaves.",
        "",
    ],
}


def test_the_default_scorers_are_shipped() -> None:
    """One precomputes; the other may add that one's scores to its own."""
    assert {FAST, ACCURATE} <= set(names())
    fast, accurate = load_model(FAST), load_model(ACCURATE)
    assert fast.scorer.precomputes
    assert not accurate.scorer.precomputes
    assert accurate.fusion is None or accurate.fusion.scorer == FAST


def test_shipped_checkpoints_are_small() -> None:
    """The limit is for all shipped checkpoints together."""
    folders = [folder for name in names() if (folder := shipped(name))]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) <= MOST_BYTES


@pytest.mark.parametrize("name", [FAST, ACCURATE])
def test_each_has_a_card(name: str) -> None:
    """The card says what the scorer was trained on, under which licence, how, and how good it is."""
    folder = shipped(name)
    assert folder is not None
    card = (folder / "README.md").read_text(encoding="utf-8").lower()
    assert all(part in card for part in ("## data", "licence", "## recipe", "## results"))


@pytest.mark.parametrize("name", [FAST, ACCURATE])
@pytest.mark.parametrize("query", QUESTIONS)
def test_the_relevant_candidate_comes_first(name: str, query: str) -> None:
    (scores,) = score_offline(load_model(name)).score([Question(query, QUESTIONS[query])])

    assert max(scores) == scores[0]
    assert len(set(scores)) == len(scores)


def test_a_name_that_is_not_shipped() -> None:
    assert shipped("all-MiniLM-L6-v2") is None
    assert shipped("..") is None
    assert shipped("") is None


def test_they_load_without_what_is_slow_to_import() -> None:
    """Torch's compiler and transformers take two fifths of the processor time until both scorers are loaded."""
    program = "import sys; from bandrank.models.loading import load_model; load_model('sparse-w4'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "torch" in modules
    assert not {"transformers", "torch._dynamo"} & {*modules}
