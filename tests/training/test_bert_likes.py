"""The trainer fine-tunes RoBERTas and ELECTRAs as it does any other model."""

from pathlib import Path

import pytest
from support.bert_likes import ALL, save
from support.training import train


@pytest.mark.parametrize("name", ALL)
def test_the_loss_falls(name: str, toy: Path, tmp_path: Path) -> None:
    trainer = train(
        toy,
        tmp_path / "out",
        model={"start": str(save(tmp_path / "start", name))},
        losses=[{"name": "contrastive"}],
        optimiser={"steps": 10, "learning_rate": 2e-3},
        data={"batch_rows": 400},
    )

    found = [entry["loss"] for entry in trainer.progress.log]
    assert sum(found[-3:]) < 0.9 * sum(found[:3])
