"""Our own checkpoints: what is written, and how damage is reported."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.disk import full_disk
from support.models import edit_json, save_cross_encoder, tiny_bi_encoder, tiny_cross_encoder
from support.refusals import assert_refused
from support.tokenizer import TOKENIZER_FILE, tiny_tokenizer

from bandrank.models import checkpoint
from bandrank.models.checkpoint import BadCheckpoint, Precision, load_precision, save_precision
from bandrank.models.fusion import Fusion
from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved sparse cross-encoder."""
    checkpoint.save(tiny_cross_encoder(pattern=sparse(4)), tmp_path / "saved", tokenizer=TOKENIZER_FILE)
    return tmp_path / "saved"


def test_a_checkpoint_is_three_files(folder: Path) -> None:
    """The config has the fields of the architecture's dataclass."""
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    expected = asdict(tiny_cross_encoder(pattern=sparse(4)).config)
    assert config == {"bandrank_format": 1, "architecture": "cross_encoder"} | expected


def test_a_checkpoint_is_loaded_by_its_folder(folder: Path) -> None:
    """`load_model` tells our folders from Hugging Face's and brings the tokenizer along."""
    model = load_model(str(folder))

    assert (model.name, model.folder) == (str(folder), folder)
    assert model.scorer.config == tiny_cross_encoder(pattern=sparse(4)).config
    assert model.tokenizer.to_str() == tiny_tokenizer().to_str()


def test_a_scorer_that_adds_to_another_says_so(tmp_path: Path) -> None:
    """The fusion is loaded with the checkpoint; the weights are the scorer's own."""
    fusion = Fusion("mix-b", 0.5)
    checkpoint.save(tiny_cross_encoder(), tmp_path, tokenizer=TOKENIZER_FILE, fusion=fusion)

    model = load_model(str(tmp_path))
    assert model.fusion == fusion
    assert model.scorer.config == tiny_cross_encoder().config


def test_layers_that_int8_leaves_in_float32_are_kept(folder: Path) -> None:
    """The names of these layers survive loading and saving; a name that is no layer's is refused."""
    save_precision(folder, Precision(("int8",), ("encoder.layers.1.down",)))
    scorer = checkpoint.load(folder)
    assert scorer.exact_layers == {"encoder.layers.1.down"}
    checkpoint.save(scorer, folder.parent / "again", tokenizer=TOKENIZER_FILE)
    assert load_precision(folder.parent / "again") == Precision((), ("encoder.layers.1.down",))

    save_precision(folder, Precision((), ("encoder.layers.9.down",)))
    with pytest.raises(BadCheckpoint, match=r"exact_layers: the encoder has no linear layer encoder\.layers\.9\.down"):
        checkpoint.load(folder)
    save_precision(folder, Precision())
    assert "exact_layers" not in (folder / "config.json").read_text(encoding="utf-8")


def test_a_damaged_fusion(tmp_path: Path) -> None:
    checkpoint.save(tiny_cross_encoder(), tmp_path, tokenizer=TOKENIZER_FILE, fusion=Fusion("mix-b"))
    assert_refused(tmp_path, r"config\.json: fusion: .*scorer", {"fusion": {"weight": 1.0}})


def test_a_checkpoint_can_be_read_by_other_users(folder: Path) -> None:
    """Files have the modes that the umask allows, since a server may run as another user than the trainer."""
    (folder / "plain").touch()

    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert modes == {(folder / "plain").stat().st_mode}


def test_is_checkpoint(folder: Path, tmp_path: Path) -> None:
    assert checkpoint.is_checkpoint(folder)
    assert not checkpoint.is_checkpoint(save_cross_encoder(tmp_path / "theirs"))


def test_saving_over_a_checkpoint(folder: Path) -> None:
    checkpoint.save(tiny_bi_encoder(), folder, tokenizer=folder / "tokenizer.json")

    assert checkpoint.load(folder).architecture == "bi_encoder"
    assert load_model(str(folder)).tokenizer.get_vocab_size() == tiny_tokenizer().get_vocab_size()


def test_a_process_keeps_the_weights_that_it_loaded(folder: Path) -> None:
    """Weights are mapped from the file. If saving changed the file, a running service would rank by a mixture, or
    crash.
    """
    scorer = checkpoint.load(folder)
    loaded = {name: weight.clone() for name, weight in scorer.state_dict().items()}
    other = checkpoint.assemble(type(scorer), scorer.config, {name: -each for name, each in loaded.items()}, source="")

    checkpoint.save(other, folder, tokenizer=TOKENIZER_FILE)

    assert all(torch.equal(weight, loaded[name]) for name, weight in scorer.state_dict().items())
    assert all(torch.equal(weight, -loaded[name]) for name, weight in checkpoint.load(folder).state_dict().items())


def test_what_cannot_be_written_leaves_the_checkpoint_as_it_was(folder: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with full_disk(1000), pytest.raises(OSError, match="File too large"):
        checkpoint.save(tiny_bi_encoder(), folder, tokenizer=TOKENIZER_FILE)

    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(("unwritten", "window"), [("config.json", 8), ("tokenizer.json", 4)])
def test_no_new_weights_are_left_with_what_belongs_to_the_old(folder: Path, unwritten: str, window: int) -> None:
    """A save that ends between two files would otherwise leave a scorer that loads, and ranks wrongly."""
    weights, other = (folder / "model.safetensors").read_bytes(), tiny_cross_encoder(seed=1, pattern=sparse(window))
    (folder / f"{unwritten}.partial").mkdir()  # so that the file cannot be written

    with pytest.raises(OSError, match=unwritten):
        checkpoint.save(other, folder, tokenizer=TOKENIZER_FILE.read_bytes() + b"\n")

    assert (folder / "model.safetensors").read_bytes() != weights
    with pytest.raises(BadCheckpoint, match=r"no config\.json"):
        checkpoint.load(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_load_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    """Some parts, such as a head, are served in float32, whatever dtype they were saved in."""
    checkpoint.save(tiny_bi_encoder().to(dtype), tmp_path, tokenizer=TOKENIZER_FILE)

    assert {parameter.dtype for parameter in checkpoint.load(tmp_path).parameters()} == {torch.float32}


def test_a_loaded_scorer_is_in_eval_mode(folder: Path) -> None:
    assert not checkpoint.load(folder).training


def in_encoder(config: dict[str, Any], **update: Any) -> dict[str, Any]:
    return config | {"encoder": config["encoder"] | update}


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown key": (lambda config: config | {"windw": 4}, "unknown keys: windw"),
    "unknown nested key": (lambda config: in_encoder(config, depth=3), "unknown keys: depth"),
    "missing key": (lambda config: {key: config[key] for key in config if key != "cls_id"}, "cls_id"),
    "part is no object": (lambda config: config | {"pattern": 4}, "expected an object for AttentionPattern, got 4"),
    "unknown encoder": (lambda config: in_encoder(config, kind="rwkv"), "encoder: kind: 'rwkv' is none of 'bert'"),
    "impossible value": (lambda config: in_encoder(config, num_heads=5), "hidden_size 32 is not a multiple"),
    "impossible limit": (lambda config: config | {"max_tokens": 513}, "max_tokens 513 must hold a query of"),
    "negative window": (lambda config: config | {"pattern": {"window": -2}}, "window must be at least 0"),
    "unknown architecture": (
        lambda config: config | {"architecture": "longformer"},
        "architecture 'longformer' is unknown; there are bi_encoder, candidate_first_reranker, colbert, c",
    ),
    "no architecture": (lambda config: {key: config[key] for key in config if key != "architecture"}, "None is unkn"),
    "later format": (lambda config: config | {"bandrank_format": 2}, "not a bandrank checkpoint of format 1"),
    "no object": (lambda _: [1], "expected a JSON object"),
    "of another size": (lambda config: in_encoder(config, intermediate_size=65), r"json; of another shape: \["),
    "of more layers": (lambda config: in_encoder(config, num_layers=3), "missing: .'encoder.layers.2"),
    "of fewer layers": (lambda config: in_encoder(config, num_layers=1), "unexpected: .'encoder.layers.1"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_config(folder: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=f"{folder}.*{message}"):
        checkpoint.load(folder)


def test_missing_and_unexpected_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["head.classifer.bias"] = weights.pop("head.classifier.bias")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(
        BadCheckpoint, match=r"missing: \['head.classifier.bias'\], unexpected: \['head.classifer.bias'\]"
    ):
        checkpoint.load(folder)


def test_missing_and_damaged_files_of_weights(folder: Path) -> None:
    """A file may end early, like a copy that broke off."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:3000])
    assert_refused(folder, r"model\.safetensors")
    path.unlink()
    assert_refused(folder, r"model\.safetensors")


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert_refused(folder, r"no tokenizer\.json and no vocab\.txt")


def test_keys_with_defaults_may_be_missing(folder: Path) -> None:
    """A config.json from before a setting existed loads with the setting's default."""
    edit_json(folder / "config.json", {}, remove=("sentence_token", "token_types"))

    assert checkpoint.load(folder).config == tiny_cross_encoder(pattern=sparse(4)).config
