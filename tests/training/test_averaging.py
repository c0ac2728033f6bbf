"""The mean of models: what is written, and what cannot be averaged."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models import tiny_bi_encoder, tiny_cross_encoder
from support.tokenizer import TOKENIZER_FILE

from bandrank.models import checkpoint
from bandrank.models.fusion import Fusion
from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank_training.__main__ import main


def saved(folder: Path, scorer: Scorer, fusion: Fusion | None = None) -> str:
    """The name of a model that was saved."""
    checkpoint.save(scorer, folder, tokenizer=TOKENIZER_FILE, fusion=fusion)
    return str(folder)


@pytest.mark.parametrize(("given", "shares"), [([], [1 / 3] * 3), (["--weights", "1", "0", "3"], [0.25, 0, 0.75])])
def test_weights_are_averaged(tmp_path: Path, given: list[str], shares: list[float]) -> None:
    """Evenly or as told, with the first model's fusion."""
    scorers = [tiny_cross_encoder(seed=seed) for seed in range(3)]
    models = [saved(tmp_path / str(seed), scorer, Fusion("mix-b", seed)) for seed, scorer in enumerate(scorers)]

    assert main(["average", str(tmp_path / "mean"), *models, *given]) == 0

    mean = load_model(str(tmp_path / "mean"))
    assert mean.fusion == Fusion("mix-b", 0)
    states = [scorer.state_dict() for scorer in scorers]
    for name, tensor in mean.scorer.state_dict().items():
        expected = sum(share * state[name] for share, state in zip(shares, states, strict=True))
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("other", "given", "message"),
    [
        (tiny_bi_encoder, [], "is a bi_encoder"),
        (lambda: tiny_cross_encoder(max_query_tokens=9), [], "differs from .* in max_query_tokens"),
        (tiny_cross_encoder, ["--weights", "1"], "1 of them for 2 models"),
        (tiny_cross_encoder, ["--weights", "0", "0"], "at least 0, and not all 0"),
        (tiny_cross_encoder, ["--weights", "nan", "1"], "at least 0, and not all 0"),
    ],
)
def test_what_cannot_be_averaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Callable[[], Scorer], given: list[str], message: str
) -> None:
    """Is told, and nothing is written."""
    models = [saved(tmp_path / "a", tiny_cross_encoder()), saved(tmp_path / "b", other())]

    assert main(["average", str(tmp_path / "mean"), *models, *given]) == 2

    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "mean").exists()
