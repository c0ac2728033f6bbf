"""What export sets on dev groups: a fusion's weight, and the constant that makes scores logits."""

import math
from pathlib import Path

import pytest
import torch
from support.models import loaded, tiny_bi_encoder, tiny_cross_encoder
from support.precomputing import tiny_mix_encoder
from support.tokenizer import TOKENIZER_FILE
from support.training import write_toy

from bandrank.models import checkpoint
from bandrank.models.fusion import Fusion
from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank_training.__main__ import main
from bandrank_training.dev import DevSet
from bandrank_training.errors import BadInput
from bandrank_training.scoring import score_offline
from bandrank_training.tuning import intercept, shifted, tune


def mix_encoder() -> Scorer:
    """One whose scores have a constant."""
    return tiny_mix_encoder(similarity="scaled_dot", bi_encoder_weight=5.0)


def test_relevant_ones_and_others_weigh_the_same() -> None:
    """However many there are of each."""
    scores = [12.0, 9.0, 15.0, 8.0, 11.0]
    constant = intercept(scores, [True, False, True, False, False])
    chances = [1 / (1 + math.exp(-score - constant)) for score in scores]

    assert (chances[0] + chances[2]) / 2 + (chances[1] + chances[3] + chances[4]) / 3 == pytest.approx(1.0)


@pytest.mark.parametrize("make", [tiny_cross_encoder, mix_encoder])
def test_tuned_scores_are_probabilities(tmp_path: Path, make: type[Scorer]) -> None:
    """Of dev candidates, the fifth that is relevant counting as much as the others; their order is as before."""
    dev = DevSet.read(write_toy(tmp_path)["dev"])
    model = loaded(make())
    before = dev.scores(score_offline(loaded(make())))

    tuned = tune(model, dev)
    scores = dev.scores(score_offline(tuned.model))

    relevant = torch.tensor([group.labels for group in dev.groups]) > 0
    chances = torch.tensor(scores).sigmoid()
    assert (chances[relevant].mean() + chances[~relevant].mean()).item() == pytest.approx(1.0, abs=2e-3)
    for row, old in zip(scores, before, strict=True):
        assert row == pytest.approx([score + tuned.shift for score in old], abs=1e-4)
    assert tuned.by_weight == {}


def test_the_best_weight_of_a_fusion_is_found(tmp_path: Path) -> None:
    """By measuring each; the exported folder has it, and ranks as it was measured."""
    paths = write_toy(tmp_path)
    dev = DevSet.read(paths["dev"])
    fast, accurate, out = tmp_path / "fast", tmp_path / "accurate", tmp_path / "out"
    checkpoint.save(tiny_bi_encoder(), fast, tokenizer=TOKENIZER_FILE)
    checkpoint.save(tiny_cross_encoder(), accurate, tokenizer=TOKENIZER_FILE, fusion=Fusion(str(fast), 7.0))
    tuned = tune(load_model(str(accurate)), dev)

    assert main(["export", str(accurate), str(out), "--tune", str(paths["dev"])]) == 0

    exported = load_model(str(out))
    assert exported.fusion == tuned.model.fusion
    assert exported.fusion is not None
    assert exported.fusion.weight in tuned.by_weight
    best = max(tuned.by_weight.values())
    assert tuned.by_weight[exported.fusion.weight] == best
    assert dev.measure(score_offline(exported)) == pytest.approx(best, abs=0.02)  # float16
    assert len(set(tuned.by_weight.values())) > 1


def test_a_scorer_without_a_constant_is_told() -> None:
    """A bi-encoder's cosine is what it is."""
    with pytest.raises(BadInput, match="a bi_encoder has no constant to set; leave out --tune"):
        shifted(tiny_bi_encoder(), 1.0)
