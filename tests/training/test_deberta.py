"""The trainer fine-tunes a DeBERTa as it does any other model."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from support.deberta import save_deberta
from support.models import change_weights
from support.training import train

from bandrank.models.encoders.deberta import DebertaConfig
from bandrank.models.loading import load_model


def test_a_deberta_learns(toy: Path, tmp_path: Path) -> None:
    """A float16 checkpoint is trained with a window and for longer texts: the loss falls, and the result loads."""
    start = save_deberta(tmp_path / "start")
    change_weights(start, lambda weights: {name: weight.half() for name, weight in weights.items()})
    encoder = asdict(load_model(str(start)).scorer.config.encoder) | {"max_positions": 1024}
    pattern = {"window": 4, "query_to_cls": False, "query_to_candidate": False}
    config = {"encoder": encoder, "max_tokens": 1024, "pattern": pattern}
    trainer = train(
        toy,
        tmp_path / "out",
        model={"start": str(start), "config": config},
        losses=[{"name": "contrastive"}],
        optimiser={"steps": 12, "learning_rate": 2e-3},
        data={"batch_rows": 400},
    )

    found = [entry["loss"] for entry in trainer.progress.log]
    assert sum(found[-3:]) < 3 / 4 * sum(found[:3])
    assert {weight.dtype for weight in trainer.scorer.parameters()} == {torch.float32}
    before, after = (load_model(str(folder)).scorer for folder in (start, tmp_path / "out"))
    assert isinstance(after.config.encoder, DebertaConfig)
    assert (after.config.pattern.window, after.config.max_tokens) == (4, 1024)
    table = "encoder.relative.table.weight"
    assert not before.state_dict()[table].float().equal(after.state_dict()[table])


def test_bfloat16_gives_the_losses_of_float32(toy: Path, tmp_path: Path) -> None:
    """Products in bfloat16 have about three digits, so the losses differ, but by less than 3%."""
    start = save_deberta(tmp_path / "start")
    exact, rounded = (
        train(
            toy,
            tmp_path / precision,
            model={"start": str(start)},
            losses=[{"name": "contrastive"}],
            optimiser={"steps": 2},
            precision=precision,
        ).progress.log
        for precision in ("float32", "bfloat16")
    )

    assert [entry["loss"] for entry in rounded] == pytest.approx([entry["loss"] for entry in exact], rel=0.03)
    assert rounded[0]["loss"] != exact[0]["loss"]
