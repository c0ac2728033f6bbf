"""Folders of sentence-transformers that are refused with a reason, rather than computed in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.models import edit_json, save_bi_encoder, write_json, write_modules

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import load_model


def test_two_poolings_at_once_are_refused(tmp_path: Path) -> None:
    """sentence-transformers would concatenate both vectors."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    with pytest.raises(BadCheckpoint, match=r"pooling \['cls', 'mean'\] is not supported, only one of cls, max, mean,"):
        load_model(str(folder))


@pytest.mark.parametrize("mode", ["median", None])
def test_a_pooling_that_nobody_knows_is_refused(mode: str | None, tmp_path: Path) -> None:
    """Later versions of sentence-transformers save the pooling by its name."""
    folder = save_bi_encoder(tmp_path)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": mode})
    with pytest.raises(BadCheckpoint, match=rf"pooling \[{mode!r}\] is not supported"):
        load_model(str(folder))


def test_other_modules_are_refused(tmp_path: Path) -> None:
    """A convolution after the pooling must not be skipped silently."""
    folder = save_bi_encoder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[2]["type"] = "sentence_transformers.models.CNN"
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"modules .*'CNN'.* are not supported, only Transformer, Pooling, Dense"):
        load_model(str(folder))


def test_without_any_module_it_is_no_bi_encoder(tmp_path: Path) -> None:
    folder = save_bi_encoder(tmp_path)
    write_json(folder / "modules.json", [])
    with pytest.raises(BadCheckpoint, match="classifier"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ({"type": "mine.Transformer"}, r"modules of code of its own \(mine.Transformer\), which is not run"),
        ({"path": "0_Transformer"}, "a transformer in '0_Transformer', not in the folder itself"),
    ],
)
def test_a_transformer_of_other_code_or_place_is_refused(module: dict[str, str], message: str, tmp_path: Path) -> None:
    """It may compute something else than the library's of that name, or with other weights."""
    folder = save_bi_encoder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    write_json(folder / "modules.json", [modules[0] | module, *modules[1:]])
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))


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
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))


def test_a_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    """The error has the library's own words and is no traceback."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "config.json", {"initializer_range": "0"})
    with pytest.raises(BadCheckpoint, match=r"config\.json: .*'initializer_range'(.|\n)*expected float, got str"):
        load_model(str(folder))


def test_modules_of_another_kind_of_model_are_named(tmp_path: Path) -> None:
    """A sparse encoder must not pass for a cross-encoder that lost its classifier."""
    folder = save_bi_encoder(tmp_path)
    kinds = {"": "base.modules.transformer.Transformer", "1_SpladePooling": "sparse_encoder.modules.SpladePooling"}
    write_modules(folder, kinds)
    with pytest.raises(BadCheckpoint, match=r"modules \['Transformer.*SpladePooling'\] are not supported"):
        load_model(str(folder))


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
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))


def test_dot_products_of_cut_unit_vectors_are_refused(tmp_path: Path) -> None:
    """They are no cosines, which can be asked for."""
    folder = save_bi_encoder(tmp_path, normalize=True)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 16, "similarity_fn_name": "dot"})
    with pytest.raises(BadCheckpoint, match=r"the dot product of vectors that are cut behind a Normalize module"):
        load_model(str(folder))
    load_model(str(folder), similarity="cosine")
    load_model(str(folder), size=32)


def test_a_pooling_without_the_prompt_is_refused(tmp_path: Path) -> None:
    """INSTRUCTOR's pooling leaves out the tokens of the prompt; without a prompt there is nothing to leave out."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "1_Pooling" / "config.json", {"include_prompt": False})
    load_model(str(folder))
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "Represent the question: "}})
    with pytest.raises(BadCheckpoint, match="a pooling that leaves the tokens of a prompt out"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.SELU"}, "2_Dense: a Dense module with SELU is not"),
        ({"use_residual": True}, "2_Dense: a Dense module with a residual"),
        ({"module_input_name": "token_embeddings"}, "2_Dense: a Dense module on 'token_embeddings'"),
        ({"module_output_name": "projected"}, "2_Dense: a Dense module on 'projected'"),
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
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))
