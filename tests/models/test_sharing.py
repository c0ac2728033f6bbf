"""Weights shared with a shipped checkpoint: left out on saving, found on loading, never those of another version."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.models import edit_json, tiny_bi_encoder, tiny_cross_encoder
from support.tokenizer import TOKENIZER_FILE

from bandrank.models import checkpoint, shipped
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model

WORDS = "encoder.embeddings.word.weight"
INT8 = ("embeddings.word",)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of shipped checkpoints: a bi-encoder, and a cross-encoder with the same table of words, saved
    once alone and once sharing it.
    """
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    checkpoint.save(tiny_bi_encoder(), tmp_path / "fast", tokenizer=TOKENIZER_FILE, int8=INT8)
    scorer = tiny_cross_encoder()
    with torch.no_grad():
        scorer.encoder.embeddings.word.weight.copy_(checkpoint.load(tmp_path / "fast").state_dict()[WORDS])
        for name, weight in scorer.state_dict().items():
            if name != WORDS:
                weight.add_(0.25)  # no other weight is that of the bi-encoder by chance
    checkpoint.save(scorer, tmp_path / "alone", tokenizer=TOKENIZER_FILE, int8=INT8)
    checkpoint.save(scorer, tmp_path / "beside", tokenizer=TOKENIZER_FILE, int8=INT8, share="fast")
    return tmp_path


def test_what_both_have_is_stored_once(folder: Path) -> None:
    """The rows and scales of the table of words are left out, and the scorer is the same."""
    alone, beside = (load_file(folder / name / "model.safetensors") for name in ("alone", "beside"))
    shared = json.loads((folder / "beside" / "config.json").read_text(encoding="utf-8"))["shared"]

    assert alone.keys() - beside.keys() == set(shared["weights"]) == {WORDS, f"{WORDS}.row_scale"}
    assert shared["checkpoint"] == "fast"
    expected, found = (checkpoint.load(folder / name).state_dict() for name in ("alone", "beside"))
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=0)


def test_one_tokenizer_is_stored_once(folder: Path) -> None:
    """The shipped checkpoint's tokenizer is not copied, and an earlier copy is deleted; another tokenizer is saved with
    the scorer.
    """
    assert (folder / "alone" / "tokenizer.json").is_file()
    assert not (folder / "beside" / "tokenizer.json").exists()
    assert load_model(str(folder / "beside")).tokenizer.get_vocab() == load_model("fast").tokenizer.get_vocab()

    other = folder / "beside" / "tokenizer.json"
    other.write_text(TOKENIZER_FILE.read_text(encoding="utf-8").replace("[UNK]", "[NEW]"), encoding="utf-8")
    scorer = checkpoint.load(folder / "beside")
    checkpoint.save(scorer, folder / "beside", tokenizer=other, int8=INT8, share="fast")
    assert load_model(str(folder / "beside")).tokenizer.token_to_id("[NEW]") is not None
    other.write_bytes(TOKENIZER_FILE.read_bytes())
    checkpoint.save(scorer, folder / "beside", tokenizer=other, int8=INT8, share="fast")
    assert not other.exists()


def test_a_tokenizer_may_be_stored_two_checkpoints_on(folder: Path) -> None:
    """The shipped checkpoint whose weights are shared may itself take its tokenizer from another."""
    checkpoint.save(tiny_cross_encoder(), folder / "third", tokenizer=TOKENIZER_FILE, int8=INT8, share="beside")

    assert not (folder / "third" / "tokenizer.json").exists()
    assert load_model(str(folder / "third")).tokenizer.get_vocab() == load_model("fast").tokenizer.get_vocab()


def test_other_weights_under_the_same_name_are_refused(folder: Path) -> None:
    """A later version may ship another scorer of that name, whose words would be silently wrong."""
    changed = tiny_bi_encoder()
    with torch.no_grad():
        changed.encoder.embeddings.word.weight[7] *= 2
    checkpoint.save(changed, folder / "fast", tokenizer=TOKENIZER_FILE, int8=INT8)

    with pytest.raises(BadCheckpoint, match="the 'fast' that ships with this version has other weights than"):
        checkpoint.load(folder / "beside")


def test_a_checkpoint_that_does_not_ship_has_nothing_to_share(folder: Path) -> None:
    """The error names the checkpoint, both on saving and on loading."""
    with pytest.raises(ValueError, match="no checkpoint 'slow' ships with this version, only alone, beside, fast"):
        checkpoint.save(tiny_cross_encoder(), folder / "x", tokenizer=TOKENIZER_FILE, share="slow")
    edit_json(folder / "beside" / "config.json", {"shared": {"checkpoint": "slow", "weights": [], "digest": ""}})
    with pytest.raises(BadCheckpoint, match="shared: no checkpoint 'slow' ships"):
        checkpoint.load(folder / "beside")


def test_a_damaged_entry_is_told_in_words(folder: Path) -> None:
    edit_json(folder / "beside" / "config.json", {"shared": {"checkpoint": "fast"}})

    with pytest.raises(BadCheckpoint, match="shared"):
        checkpoint.load(folder / "beside")
