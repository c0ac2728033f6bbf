"""Folders of sentence-transformers that are refused with a reason, rather than computed in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.models import edit_json, save_bi_encoder, write_json, write_modules
from support.refusals import assert_refused

from bandrank.models.loading import load_model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling_mode": "median"}, r"\['median'\] is not supported, only cls, max, mean,"),
        ({"pooling_mode": ["mean", "median"]}, r"\['mean', 'median'\] is not supported"),
        ({"pooling_mode": None}, r"\[None\] is not supported"),
    ],
)
def test_another_pooling_is_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "1_Pooling" / "config.json", settings)
    assert_refused(folder, f"pooling {message}")


@pytest.mark.parametrize(
    ("index", "module", "message"),
    [
        (
            2,
            {"type": "sentence_transformers.models.CNN"},
            r"modules .*'CNN'.* are not supported, only Transformer, Pooling, Dense",
        ),
        (0, {"type": "mine.Transformer"}, r"modules of code of its own \(mine.Transformer\), which is not run"),
        (0, {"path": "0_Transformer"}, "a transformer in '0_Transformer' is not supported: only"),
        (0, {"path": "../1_Pooling"}, "a transformer in '../1_Pooling' is not supported: only"),
    ],
)
def test_another_module_is_refused(index: int, module: dict[str, str], message: str, tmp_path: Path) -> None:
    """It must not be skipped silently, and may compute something else than the library's, or with other weights."""
    folder = save_bi_encoder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[index] |= module
    write_json(folder / "modules.json", modules)
    assert_refused(folder, message)


def test_modules_without_a_transformer_beside_them_are_named(tmp_path: Path) -> None:
    """As in a model with a Router; version 1 had a config.json of its own number alone."""
    write_modules(tmp_path, {"0_Transformer": "models.Transformer", "1_Pooling": "models.Pooling"})
    write_json(tmp_path / "config.json", {"__version__": "1.0.0"})
    assert_refused(tmp_path, r"modules \['Transformer', 'Pooling'\] without a transformer in the folder itself are not")


def test_without_any_module_it_is_no_bi_encoder(tmp_path: Path) -> None:
    write_json(save_bi_encoder(tmp_path) / "modules.json", [])
    assert_refused(tmp_path, "classifier")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config_args": {"num_hidden_layers": 1}}, "loaded with {'config_args': {'num_hidden_layers': 1}}"),
        ({"tokenizer_args": {"model_max_length": 6}}, "loaded with {'tokenizer_args': {'model_max_length': 6}}"),
        ({"modality_config": {"text": {"method_output_name": ["hidden_states", -2]}}}, "loaded with {'text': "),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "loaded with {'text': "),
        ({"transformer_task": "fill-mask"}, "a SentenceTransformer for fill-mask with a Pooling module"),
        ({"model_type": "CrossEncoder"}, "a CrossEncoder for feature-extraction with a Pooling module"),
    ],
)
def test_a_transformer_that_is_loaded_otherwise_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Settings that change no score beyond its precision are not refused."""
    folder = save_bi_encoder(tmp_path)
    usual = {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        write_json(folder / name, usual | {"model_args": {"dtype": "bfloat16"}})
    load_model(str(folder))
    for name in ("sentence_bert_config.json", "config_sentence_transformers.json"):
        edit_json(folder / name, settings)
    assert_refused(folder, message)


def test_a_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    """The error has the library's own words and is no traceback."""
    assert_refused(
        save_bi_encoder(tmp_path),
        r"config\.json: .*'initializer_range'(.|\n)*expected float, got str",
        {"initializer_range": "0"},
    )


def test_modules_of_another_kind_of_model_are_named(tmp_path: Path) -> None:
    """A sparse encoder must not pass for a cross-encoder that lost its classifier."""
    folder = save_bi_encoder(tmp_path)
    kinds = {"": "base.modules.transformer.Transformer", "1_Sparse": "sparse_encoder.modules.SparseAutoEncoder"}
    write_modules(folder, kinds)
    assert_refused(folder, r"modules \['Transformer.*SparseAutoEncoder'\] are not supported")
    kinds = {"": "base.modules.transformer.Transformer", "1_SpladePooling": "sparse_encoder.modules.SpladePooling"}
    write_modules(folder, kinds)
    assert_refused(folder, r"a Transformer before a SpladePooling that gives no logits is not supported")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"similarity_fn_name": "euclidean"}, "similarity 'euclidean' is not supported, only cosine or dot"),
        ({"truncate_dim": 0}, "truncate_dim must be a whole number above 0, got 0"),
        ({"truncate_dim": "16"}, "must be a whole number above 0, got '16'"),
        ({"prompts": {"query": 7}}, "the prompt 'query' must be a text, got 7"),
    ],
)
def test_a_bi_encoder_that_compares_otherwise_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    folder = save_bi_encoder(tmp_path, normalize=True)
    write_json(folder / "config_sentence_transformers.json", settings)
    assert_refused(folder, message)


def test_dot_products_of_cut_unit_vectors_are_refused(tmp_path: Path) -> None:
    """They are no cosines, which can be asked for."""
    folder = save_bi_encoder(tmp_path, normalize=True)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 16, "similarity_fn_name": "dot"})
    assert_refused(folder, r"the dot product of vectors that are cut behind a Normalize module")
    load_model(str(folder), similarity="cosine")
    load_model(str(folder), size=32)


def test_a_pooling_without_the_prompt_is_refused(tmp_path: Path) -> None:
    """INSTRUCTOR's pooling leaves out the tokens of the prompt; without a prompt there is nothing to leave out."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "1_Pooling" / "config.json", {"include_prompt": False})
    load_model(str(folder))
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "Represent the question: "}})
    assert_refused(folder, "a pooling that leaves the tokens of a prompt out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.SELU"}, "2_Dense: a Dense module with SELU is not"),
        ({"activation_function": "mine.ReLU"}, "2_Dense: a Dense module with mine.ReLU is not"),
        ({"module_input_name": "token_embeddings"}, "2_Dense: module_input_name 'token_embeddings'"),
        ({"module_output_name": "projected"}, "2_Dense: module_output_name 'projected'"),
    ],
)
def test_a_dense_module_that_computes_otherwise_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    folder = save_bi_encoder(tmp_path, normalize=False)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    write_json(folder / "modules.json", [*modules, dense])
    (folder / "2_Dense").mkdir()
    write_json(folder / "2_Dense" / "config.json", {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": torch.zeros(8, 32)}, folder / "2_Dense" / "model.safetensors")
    load_model(str(folder))
    edit_json(folder / "2_Dense" / "config.json", settings)
    assert_refused(folder, message)


def test_a_norm_of_tokens_is_refused(tmp_path: Path) -> None:
    """Behind a pooling it changes no vector, and dot products are no cosines."""
    folder = save_bi_encoder(tmp_path, normalize=True)
    (folder / "2_Normalize").mkdir()
    write_json(folder / "2_Normalize" / "config.json", {"module_input_name": "token_embeddings"})
    assert_refused(folder, "2_Normalize: module_input_name 'token_embeddings' is not supported, only")
