"""`bandrank export`: the checkpoint that training starts from."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.deberta import save_deberta
from support.models import (
    random_ids,
    save_bi_encoder,
    save_colbert,
    save_cross_encoder,
    save_sparse_cross_encoder,
    score_batch,
    tiny_bi_encoder,
)
from support.tokenizer import TOKENIZER_FILE
from support.training import train, write_toy

from bandrank.__main__ import main
from bandrank.models import checkpoint
from bandrank.models.architectures import CrossEncoder
from bandrank.models.layers.patterns import FULL, sparse
from bandrank.models.loading import load_model


def save_vocabulary_alone(folder: Path) -> Path:
    """Saves a cross-encoder whose tokenizer is only a vocab.txt of word pieces."""
    save_cross_encoder(folder)
    vocabulary = load_model(str(folder)).tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.__getitem__)))
    (folder / "tokenizer.json").unlink()
    return folder


STARTS: dict[str, Callable[[Path], Path]] = {
    "bert": save_cross_encoder,
    "sparse": save_sparse_cross_encoder,
    "deberta": save_deberta,
    "vocabulary alone": save_vocabulary_alone,
}


def export(model: Path, folder: Path, window: int = 3) -> CrossEncoder:
    """Runs the command and loads the cross-encoder that it wrote."""
    assert main(["export", str(model), str(folder), "--window", str(window)]) == 0
    scorer = load_model(str(folder)).scorer
    assert isinstance(scorer, CrossEncoder)
    return scorer


@pytest.mark.parametrize("save", STARTS.values(), ids=STARTS)
def test_a_cross_encoder_gets_a_window_and_keeps_the_rest(save: Callable[[Path], Path], tmp_path: Path) -> None:
    """With its old attention pattern, the exported checkpoint scores as the original does."""
    folder = save(tmp_path / "model")
    start = load_model(str(folder))
    exported = export(folder, tmp_path / "out")
    assert isinstance(start.scorer, CrossEncoder)
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, n) for n in (0, 9, 60)]])

    assert exported.config == replace(start.scorer.config, pattern=sparse(3))
    same = CrossEncoder(start.scorer.config).eval()
    same.load_state_dict(exported.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(same(batch), start.scorer(batch))
        if start.scorer.config.pattern == FULL:
            assert (exported(batch) - start.scorer(batch)).abs().max() > 0.01
    text = "Over the time which many"
    assert load_model(str(tmp_path / "out")).tokenizer.encode(text).ids == start.tokenizer.encode(text).ids


def test_a_bi_encoder_gives_its_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The head is random but the same for each export, the command says so, and training can start from it."""
    folder = save_bi_encoder(tmp_path / "model", max_seq_length=64)
    exported, again = (export(folder, tmp_path / name) for name in ("out", "again"))
    encoder = load_model(str(folder)).scorer.encoder.state_dict()

    assert "a random head" in capsys.readouterr().out
    assert (exported.config.pattern, exported.config.max_tokens) == (sparse(3), 512)
    assert all(torch.equal(encoder[name], weight) for name, weight in exported.encoder.state_dict().items())
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in exported.state_dict().items())
    write_toy(tmp_path)
    trainer = train(tmp_path, tmp_path / "trained", "out", losses=[{"name": "contrastive"}], optimiser={"steps": 2})
    assert trainer.progress.step == 2
    assert trainer.scorer.config == exported.config


def test_what_cannot_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says why, the exit code is 2, and nothing is written."""
    colbert, cross_encoder = save_colbert(tmp_path / "colbert"), save_cross_encoder(tmp_path / "cross_encoder")
    out, apart = tmp_path / "out", tmp_path / "apart"
    checkpoint.save(tiny_bi_encoder(separate_towers=True), apart, tokenizer=TOKENIZER_FILE)
    (tmp_path / "file").touch()
    for arguments, told in (
        ([str(cross_encoder), str(tmp_path / "file" / "out"), "--window", "4"], "file/out: Not a directory"),
        ([str(colbert), str(out), "--window", "4"], "a colbert gives no cross-encoder"),
        ([str(apart), str(out), "--window", "4"], "apart: it has one encoder for queries and one for candidates"),
        ([str(cross_encoder), str(out), "--window", "-1"], "window must be at least 0"),
        ([str(tmp_path / "missing"), str(out), "--window", "4"], "no such folder"),
        ([str(cross_encoder), str(cross_encoder), "--window", "4"], "is not an empty folder"),
    ):
        capsys.readouterr()
        assert main(["export", *arguments]) == 2
        printed = capsys.readouterr().err
        assert told in printed
        assert printed.count("\n") == 1
        assert not out.exists()
