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


@pytest.mark.parametrize("kind", ["pooling.Pooling", "my_modules.Normalize"])
def test_modules_of_other_code_are_refused(kind: str, tmp_path: Path) -> None:
    """They may compute something else than the library's modules of the same name."""
    names = {"Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    kinds = {"": "models.Transformer"} | {path: f"models.{name}" for name, path in names.items()}
    folder = save_bi_encoder(tmp_path)
    write_modules(folder, kinds)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    write_json(
        folder / "modules.json", [each | {"type": kind} if kind[-5:] in each["type"] else each for each in modules]
    )
    with pytest.raises(BadCheckpoint, match=rf"modules of code of its own \({kind}\), which is not run"):
        load_model(str(folder))


def test_a_transformer_in_a_folder_of_its_own_is_refused(tmp_path: Path) -> None:
    """The weights in the folder itself may be others."""
    folder = save_bi_encoder(tmp_path)
    write_modules(folder, {"0_Transformer": "models.Transformer", "1_Pooling": "models.Pooling"})
    with pytest.raises(BadCheckpoint, match="a transformer in '0_Transformer', not in the folder itself"):
        load_model(str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"config_args": {"num_hidden_layers": 1}}, "{'config_args': {'num_hidden_layers': 1}}"),
        ({"config_kwargs": {"is_causal": False}}, "{'config_kwargs': "),
        ({"model_kwargs": {"default_task": "clustering"}}, "{'model_kwargs': "),
        (
            {"modality_config": {"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}},
            r"{'modality_config.text': .*\['hidden_states', -2\]",
        ),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "{'modality_config.text': "),
    ],
)
def test_a_transformer_that_is_loaded_otherwise_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Settings that change no score beyond its precision are not refused."""
    folder = save_bi_encoder(tmp_path)
    whole = {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}
    edit_json(folder / "sentence_bert_config.json", whole | {"model_args": {"dtype": "bfloat16"}})
    load_model(str(folder))
    edit_json(folder / "sentence_bert_config.json", settings)
    with pytest.raises(BadCheckpoint, match=f"a transformer that is loaded with {message}.* is not supported"):
        load_model(str(folder))


def test_another_kind_of_model_with_a_pooling_is_refused(tmp_path: Path) -> None:
    """A cross-encoder may have the modules of a bi-encoder, one of which gives the score."""
    folder = save_bi_encoder(tmp_path)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    with pytest.raises(BadCheckpoint, match="a CrossEncoder with a Pooling module is not supported"):
        load_model(str(folder))
    edit_json(folder / "config_sentence_transformers.json", {"model_type": "SentenceTransformer"})
    edit_json(folder / "sentence_bert_config.json", {"transformer_task": "fill-mask"})
    with pytest.raises(BadCheckpoint, match="a Pooling module behind a transformer for fill-mask is not supported"):
        load_model(str(folder))


def test_a_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    """The error has the library's own words and is no traceback."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "config.json", {"layer_norm_eps": "1e-12"})
    with pytest.raises(BadCheckpoint, match=r"config\.json: .*'layer_norm_eps'(.|\n)*expected float, got str"):
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
