"""Hugging Face folders that load: families, formats and tokenizers."""

import string
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.models import (
    as_served,
    change_weights,
    edit_json,
    save_bi_encoder,
    save_colbert,
    save_cross_encoder,
    save_sparse_cross_encoder,
    some_scores,
    tiny_bert_config,
    tiny_hf_cross_encoder,
    tiny_hf_encoder,
    write_json,
    write_modules,
)
from support.tokenizer import MASK_ID, build_tokenizer, tiny_tokenizer

from bandrank.models import hf
from bandrank.models.architectures import ColBERT
from bandrank.models.layers.interpolation import interpolate_positions
from bandrank.models.loading import load_model


def as_pickle(folder: Path, **options: bool) -> None:
    """Replaces model.safetensors by pytorch_model.bin."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin", **options)
    (folder / "model.safetensors").unlink()


def test_a_cross_encoder_saved_by_sentence_transformers_6(tmp_path: Path) -> None:
    """Version 6 writes modules.json for cross-encoders too, with one Transformer and no pooling."""
    model = tiny_hf_cross_encoder()
    before = hf.load(save_cross_encoder(tmp_path / "before", model))
    folder = save_cross_encoder(tmp_path / "now", model)
    write_modules(folder, {"": "base.modules.transformer.Transformer"})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})

    scorer = hf.load(folder)

    assert scorer.config == before.config
    assert some_scores(scorer) == some_scores(before)


def test_a_colbert(tmp_path: Path) -> None:
    """The folder is one of Stanford's library: weights under its names, settings in artifact.metadata."""
    model = tiny_hf_encoder()
    folder = save_colbert(tmp_path, model, dim=8)
    scorer = hf.load(folder)

    assert isinstance(scorer, ColBERT)
    config = scorer.config
    assert (config.query_marker, config.candidate_marker, config.mask_id) == (1, 2, MASK_ID)
    assert (config.max_query_tokens, config.max_candidate_tokens, config.dim) == (32, 180, 8)
    assert (config.similarity, config.augment, config.attend_to_masks, config.floor) == ("cosine", True, False, False)
    assert config.skipped_ids == tuple(tiny_tokenizer().token_to_id(symbol) for symbol in string.punctuation)
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(scorer.projection.weight, weights["linear.weight"])
    assert torch.equal(scorer.encoder.layers[1].up.weight, model.encoder.layer[1].intermediate.dense.weight)  # type: ignore[union-attr]
    assert len(set(some_scores(scorer))) == 4


def test_the_settings_of_a_colbert(tmp_path: Path) -> None:
    """Each setting is heeded, without artifact.metadata the library's defaults hold, and the number of positions bounds
    both lengths.
    """
    settings = {
        "query_token_id": "[unused2]",
        "doc_token_id": "[unused3]",
        "similarity": "l2",
        "query_maxlen": 48,
        "doc_maxlen": 9999,
        "mask_punctuation": False,
        "attend_to_mask_tokens": True,
    }
    config = hf.load(save_colbert(tmp_path / "all", settings=settings)).config
    nested = save_colbert(tmp_path / "nested")
    write_json(nested / "artifact.metadata", {"config": settings})
    bare = save_colbert(tmp_path / "bare")
    (bare / "artifact.metadata").unlink()

    assert (config.query_marker, config.candidate_marker, config.similarity) == (3, 4, "l2")
    assert (config.max_query_tokens, config.max_candidate_tokens, config.skipped_ids) == (48, 512, ())
    assert config.attend_to_masks
    assert hf.load(nested).config == config
    assert hf.load(bare).config.max_candidate_tokens == 220
    null = dict.fromkeys(("query_token_id", "doc_token_id", "query_maxlen", "doc_maxlen"))
    assert hf.load(save_colbert(tmp_path / "null", settings=null)).config == hf.load(bare).config


@pytest.mark.parametrize("save", [save_cross_encoder, save_sparse_cross_encoder, save_bi_encoder, save_colbert])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_pickled_weights(tmp_path: Path, save: Callable[[Path], Path], options: dict[str, bool]) -> None:
    """A pytorch_model.bin in either of torch's formats gives the scores of model.safetensors."""
    folder = save(tmp_path)
    before = some_scores(hf.load(folder))
    as_pickle(folder, **options)

    assert some_scores(hf.load(folder)) == before


def test_old_names_and_buffers(tmp_path: Path) -> None:
    """LayerNorms with gamma and beta, and the integer buffers of old files, load like today's weights."""
    folder = save_cross_encoder(tmp_path)
    before = some_scores(hf.load(folder))

    def age(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items()
        }
        buffers = {f"bert.embeddings.{name}": torch.arange(512)[None] for name in ("position_ids", "token_type_ids")}
        return old | buffers

    change_weights(folder, age)

    assert some_scores(hf.load(folder)) == before


def test_half_precision_weights_stay_so_but_for_the_head(tmp_path: Path) -> None:
    """Weights keep the dtype they were saved in; the head, which breaks ties, becomes float32."""
    folder = save_cross_encoder(tmp_path)
    change_weights(folder, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    scorer = hf.load(folder)

    assert {p.dtype for name, p in scorer.named_parameters() if name.startswith("head.")} == {torch.float32}
    assert {p.dtype for name, p in scorer.named_parameters() if not name.startswith("head.")} == {torch.float16}
    assert torch.tensor(some_scores(as_served(scorer))).isfinite().all()


def test_a_longer_config_stretches_the_position_table(tmp_path: Path) -> None:
    """With 1024 positions in config.json, a table of 512 is interpolated, and nothing else changes."""
    folder = save_sparse_cross_encoder(tmp_path)
    table = hf.load(folder).state_dict()["encoder.embeddings.position.weight"]
    edit_json(folder / "config.json", {"max_position_embeddings": 1024})

    scorer = hf.load(folder)

    stretched = scorer.state_dict()["encoder.embeddings.position.weight"]
    assert torch.equal(stretched, interpolate_positions(table, 1024))
    assert scorer.config.max_tokens == 1024


def test_a_stored_long_table_is_taken_as_it_is(tmp_path: Path) -> None:
    """A table of as many rows as config.json says is not changed, whatever `base_max_position_embeddings` says."""
    model = tiny_hf_cross_encoder(positions=1024)
    folder = save_sparse_cross_encoder(tmp_path, model=model)
    edit_json(folder / "config.json", {"base_max_position_embeddings": 512})
    edit_json(folder / "tokenizer_config.json", {"model_max_length": 512})

    scorer = hf.load(folder)

    stored = model.bert.embeddings.position_embeddings.weight
    assert torch.equal(scorer.state_dict()["encoder.embeddings.position.weight"], stored)
    assert scorer.config.max_tokens == 1024


def test_added_tokens_grow_the_vocabulary(tmp_path: Path) -> None:
    """The size of the vocabulary is that of the embedding table, not `vocab_size`."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"vocab_size": 7})

    assert hf.load(folder).config.encoder.vocab_size == tiny_tokenizer().get_vocab_size()


# Tokenizers


def test_a_folder_with_a_vocabulary_alone(tmp_path: Path) -> None:
    """A vocab.txt, the file of a slow tokenizer, gives the ids that tokenizer.json would."""
    folder = save_cross_encoder(tmp_path)
    tokens = sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in tokens), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    text = "The other king, was Running 42x! Überall ☃ [SEP]"

    model = load_model(str(folder))

    for special in (False, True):
        ours = model.tokenizer.encode(text, add_special_tokens=special).ids
        assert ours == tiny_tokenizer().encode(text, add_special_tokens=special).ids
    assert some_scores(model.scorer)


def test_tiny_tokenizer_is_the_one_in_the_file() -> None:
    """tests/data/tiny_tokenizer.json is what `support.tokenizer` builds, and fits the tiny models."""
    assert build_tokenizer().to_str() == tiny_tokenizer().to_str()
    assert tiny_bert_config().vocab_size == tiny_tokenizer().get_vocab_size()


@pytest.mark.parametrize(
    ("file", "saved", "expected"), [("bert", 128, 128), ("xlm-roberta", 64, 64), ("bert", 9999, 512)]
)
def test_the_length_that_sentence_transformers_saves(tmp_path: Path, file: str, saved: int, expected: int) -> None:
    """A cross-encoder reads at most as many tokens as the file says, and never more than it has positions."""
    folder = save_cross_encoder(tmp_path)
    write_json(folder / f"sentence_{file}_config.json", {"max_seq_length": saved})
    config = load_model(str(folder)).scorer.config

    assert (config.max_tokens, config.max_query_tokens) == (expected, min(256, expected // 2))
