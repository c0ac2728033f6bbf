"""Hugging Face folders that are refused, with a message that says why; none of their code runs."""

import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from safetensors.torch import load_file, save_file
from support import bert_likes
from support.deberta import save_deberta
from support.models import (
    SWITCHES,
    change_weights,
    edit_json,
    save_bi_encoder,
    save_colbert,
    save_cross_encoder,
    save_sparse_cross_encoder,
    write_json,
)
from support.refusals import assert_refused

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.hf import files
from bandrank.models.loading import load_model

SUPPORTED_IS_NAMED = "`bandrank models` lists the families that load"


# Models that are not supported


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"model_type": "bart"}, "model_type 'bart'"),
        ({"model_type": None}, "model_type None"),
        ({"model_type": ["bert"]}, r"model_type \['bert'\]"),
        ({"position_embedding_type": "relative_key"}, "model_type 'bert' with relative_key positions"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported, only the exact gelu"),
        ({"hidden_act": "gelu_new"}, "activation 'gelu_new' is not supported"),
        ({"is_decoder": True}, "an encoder whose tokens see none behind them"),
        ({"architectures": ["BertForTokenClassification"]}, "a model that labels single tokens is no re-ranker"),
    ],
)
def test_another_kind_of_model_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(save_cross_encoder(tmp_path), f"{message}.*{SUPPORTED_IS_NAMED}", settings)


def test_a_re_ranker_with_a_prompt_is_refused(tmp_path: Path) -> None:
    """CrossEncoder.predict puts the default prompt before the query; any other prompt is not used."""
    folder = save_cross_encoder(tmp_path)
    library = {"prompts": {"ask": "which man: ", "none": ""}, "default_prompt_name": "none"}
    write_json(folder / "config_sentence_transformers.json", library)
    load_model(str(folder))
    write_json(folder / "config_sentence_transformers.json", library | {"default_prompt_name": "ask"})
    assert_refused(folder, f"the default prompt 'which man: ' is not supported.*{SUPPORTED_IS_NAMED}")


def test_a_classifier_of_three_labels_is_refused(tmp_path: Path) -> None:
    """A classifier for inference (entailment) is no re-ranker."""
    message = f"classifier with one output, but this model has 3.*{SUPPORTED_IS_NAMED}"
    assert_refused(save_cross_encoder(tmp_path / "bert", num_labels=3), message)
    assert_refused(save_deberta(tmp_path / "deberta", num_labels=3), message)  # cross-encoder/nli-deberta-v3-base


def test_an_encoder_without_classifier_is_refused(tmp_path: Path) -> None:
    """The folder of a bi-encoder without its modules.json is a bare encoder."""
    folder = save_bi_encoder(tmp_path)
    (folder / "modules.json").unlink()
    assert_refused(folder, f"this model has none; {SUPPORTED_IS_NAMED}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interaction": "flipr"}, "interaction 'flipr' by 'cosine' is not supported"),
        ({"similarity": "dot"}, "interaction 'colbert' by 'dot' is not supported"),
        ({"query_token_id": "[Q]"}, r"the tokenizer has no \[Q\]"),
        ({"query_maxlen": 2}, "max_query_tokens must be within 3..512, got 2"),
    ],
)
def test_a_colbert_of_another_kind_is_refused(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    """These settings would give other scores than those the model was trained for."""
    assert_refused(save_colbert(tmp_path, settings=settings), message)


@pytest.mark.parametrize("missing", [*SWITCHES, "attention_window_size"])
def test_an_incomplete_sparse_config_is_refused(tmp_path: Path, missing: str) -> None:
    """The weights would load with full attention as well, but would give other scores."""
    folder = save_sparse_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {}, remove=(missing,))
    assert_refused(folder, r"a sparse cross-encoder whose .* must not be run as full attention")


@pytest.mark.parametrize("kept", ["attention_window_size", "query_cls_attention", "architectures"])
def test_any_trace_of_a_sparse_config_is_noticed(tmp_path: Path, kept: str) -> None:
    """A window, a switch or the architecture's name is enough to refuse full attention."""
    folder = save_sparse_cross_encoder(tmp_path)
    names = {*SWITCHES, "attention_window_size", "architectures"} - {kept}
    edit_json(folder / "config.json", {}, remove=tuple(names))
    assert_refused(folder, "must not be run as full attention")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_window_size": -1}, "window must be at least 0"),
        ({"attention_window_size": "4"}, "window: expected int, got '4'"),
    ],
)
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(save_sparse_cross_encoder(tmp_path), message, settings)


# Weights that do not fit


def test_no_weights(tmp_path: Path) -> None:
    folder = save_cross_encoder(tmp_path)
    (folder / "model.safetensors").unlink()
    assert_refused(folder, r"no model\.safetensors and no pytorch_model\.bin")


@pytest.mark.parametrize("with_config", [True, False])
def test_an_adapter(with_config: bool, tmp_path: Path) -> None:
    """An adapter that peft saved holds differences to another model's weights, which transformers adds to those beside
    it.
    """
    folder = save_cross_encoder(tmp_path)
    write_json(folder / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "some/model"})
    save_file({"lora_A.weight": torch.zeros(1, 2)}, folder / "adapter_model.safetensors")
    assert_refused(folder, r"an adapter beside weights, .* without adapter_config\.json")
    (folder / "model.safetensors").unlink()
    if not with_config:
        (folder / "config.json").unlink()
    assert_refused(folder, r"an adapter without the model .* merge_and_unload")


def test_an_exported_model(tmp_path: Path) -> None:
    """A folder with ONNX weights alone is refused, and the message says what to take instead."""
    folder = save_cross_encoder(tmp_path)
    (folder / "onnx").mkdir()
    (folder / "model.safetensors").rename(folder / "onnx" / "model.onnx")
    assert_refused(folder, "only in ONNX, OpenVINO or GGUF, take the one that it was exported from")


def save_jina_bert(folder: Path) -> Path:
    return bert_likes.save(folder, "jinaai/jina-reranker-v1-tiny-en")


@pytest.mark.parametrize(
    ("save", "lost"),
    [
        (save_cross_encoder, "bert.encoder.layer.1.output.dense.bias"),
        (save_cross_encoder, "bert.embeddings.position_embeddings.weight"),  # looked up before all others
        (save_colbert, "linear.weight"),
        (save_deberta, "deberta.encoder.rel_embeddings.weight"),
        (save_deberta, "deberta.encoder.LayerNorm.bias"),
        (save_deberta, "deberta.encoder.layer.1.attention.self.key_proj.bias"),
        (save_jina_bert, "bert.embeddings.token_type_embeddings.weight"),
        (save_jina_bert, "bert.encoder.layer.1.mlp.gated_layers.weight"),
    ],
)
def test_a_missing_tensor_is_named(save: Callable[[Path], Path], lost: str, tmp_path: Path) -> None:
    folder = save(tmp_path)
    change_weights(folder, lambda weights: {name: tensor for name, tensor in weights.items() if name != lost})
    assert_refused(folder, "the weights have no tensor '{}'".format(re.sub(r"^(de)?berta?\.", "", lost)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_hidden_layers": 3}, r"layer\.2"),
        ({"num_hidden_layers": 1}, "config.json names 1 layers, the weights have 2"),
        ({"intermediate_size": 65}, "of another shape: .'"),
        ({"max_position_embeddings": 256}, "of another shape: .'"),
        ({"hidden_size": 64}, "of another shape: .'"),
        ({"num_attention_heads": 5}, "hidden_size 32 is not a multiple of num_heads 5"),
    ],
)
def test_a_config_that_does_not_fit_the_weights(settings: dict[str, int], message: str, tmp_path: Path) -> None:
    """Nor are layers dropped silently."""
    assert_refused(save_cross_encoder(tmp_path), message, settings)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_file(name: str, tmp_path: Path) -> None:
    """The file is cut short, as by a download that broke off."""
    path = save_cross_encoder(tmp_path) / name
    path.write_bytes(path.read_bytes()[:1000])
    assert_refused(tmp_path, name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin"])
def test_a_file_that_may_not_be_read(name: str) -> None:
    """Safetensors writes files that only their owner may read, and a container runs as another user."""
    with TemporaryDirectory() as path:
        folder = save_cross_encoder(Path(path))
        if name == "pytorch_model.bin":
            (folder / "model.safetensors").rename(folder / name)
        (folder / name).chmod(0o000)
        folder.chmod(0o755)
        with as_anybody(), pytest.raises(BadCheckpoint, match=rf"{name}: this process \(user \d+\) may not read it"):
            load_model(path)


@contextmanager
def as_anybody() -> Iterator[None]:
    """Runs the block as an ordinary user, if the tests run as root, who may read everything."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


class RunsCode:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
def test_a_pickle_that_runs_code_is_refused(form: str, tmp_path: Path) -> None:
    """Weights with a foreign object in them, or that torch did not write, are not loaded, and no code runs."""
    folder, trace = save_cross_encoder(tmp_path / "model"), tmp_path / "trace"
    if form == "bare":
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(trace), protocol=2))
    else:
        weights = {**load_file(folder / "model.safetensors"), "object": RunsCode(trace)}
        torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "zip")
    (folder / "model.safetensors").unlink()
    assert_refused(folder, r"pytorch_model\.bin")

    assert not trace.exists()


# Where a model is looked for


@pytest.mark.parametrize("model", ["./missing", "/missing/folder", "~/missing", "../missing"])
def test_a_path_that_leads_nowhere(model: str) -> None:
    """A name that looks like a path is not looked up on the hub."""
    with pytest.raises(BadCheckpoint, match=f"^{model}: no such folder"):
        files.find_folder(model)


@pytest.mark.parametrize("model", ["a/b/c", "two words", "-"])
def test_a_name_that_no_model_can_have(model: str) -> None:
    """The hub allows no such name. If it could be that of a shipped model, misspelt, the message names those."""
    with pytest.raises(BadCheckpoint) as refused:
        files.find_folder(model)

    assert ("/" in model) != str(refused.value).endswith("; shipped are mix-b, sparse-w4")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (GatedRepoError("401", response=SimpleNamespace(headers={}, request=None)),  # type: ignore[arg-type]
         "org/model: on the hub, but only for those who have accepted its terms; .* set HF_TOKEN"),
        (PermissionError(13, "Permission denied"), "org/model: cannot be downloaded: .*Permission denied"),
        (httpx.ProxyError("403 Forbidden"), "org/model: cannot be downloaded: 403 Forbidden"),
    ],
    ids=["gated", "cache", "proxy"],
)  # fmt: skip
def test_a_download_that_fails(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says why, and there is no traceback."""

    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(files, "snapshot_download", fail)
    with pytest.raises(BadCheckpoint, match=f"^{said}"):
        files.find_folder("org/model")


def test_an_empty_folder(tmp_path: Path) -> None:
    """The message says what a model folder needs."""
    assert_refused(tmp_path, r"no config\.json; a model folder needs config\.json, weights and a tok")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[" * 99_999, "not JSON"), ("[]", "expected a JSON object"), ("\ud83d", "not JSON")],
)
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert_refused(tmp_path, message)
