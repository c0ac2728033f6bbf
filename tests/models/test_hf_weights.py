"""Hugging Face folders: what is read, what is refused and in which words."""

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.models import (
    SWITCHES,
    edit_json,
    random_ids,
    save_bi_encoder,
    save_cross_encoder,
    save_sparse_cross_encoder,
    score_batch,
    tiny_bert_config,
    tiny_hf_cross_encoder,
    tiny_hf_encoder,
    tiny_tokenizer,
    write_json,
)
from support.tokenizer import CLS_ID, SEP_ID

from bandrank.models import hf_files, hf_weights
from bandrank.models.architectures import BiEncoder, CrossEncoder
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.layers.embeddings import interpolate_positions
from bandrank.models.layers.patterns import FULL, sparse
from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

SUPPORTED_IS_NAMED = "supported are BERT cross-encoders with one label"


def some_scores(scorer: Scorer) -> list[float]:
    """Scores of a fixed batch."""
    rng = random.Random(0)
    with torch.inference_mode():
        return scorer(score_batch([random_ids(rng, 5)], [[random_ids(rng, n) for n in (0, 9, 30, 60)]])).tolist()  # type: ignore[no-any-return]


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrites the folder's model.safetensors."""
    path = folder / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in change(load_file(path)).items()}, path)


def as_pickle(folder: Path, **options: Any) -> None:
    """Puts pytorch_model.bin in the place of model.safetensors."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin", **options)
    (folder / "model.safetensors").unlink()


# What is read


def test_a_plain_cross_encoder_has_full_attention(tmp_path: Path) -> None:
    """A folder without attention switches."""
    scorer = hf_weights.load(save_cross_encoder(tmp_path))

    assert isinstance(scorer, CrossEncoder)
    assert scorer.config.pattern == FULL
    assert (scorer.config.max_tokens, scorer.config.cls_id, scorer.config.sep_id) == (512, CLS_ID, SEP_ID)
    assert scorer.config.token_types


@pytest.mark.parametrize("window", [0, 4, None])
def test_a_sparse_cross_encoder_has_its_pattern(tmp_path: Path, window: int | None) -> None:
    """The same weights load with the pattern of config.json, and do not give the scores of full attention."""
    model = tiny_hf_cross_encoder()
    scorer = hf_weights.load(save_sparse_cross_encoder(tmp_path / "sparse", sparse(window), model=model))
    full = hf_weights.load(save_cross_encoder(tmp_path / "full", model))

    assert isinstance(scorer, CrossEncoder)
    assert scorer.config.pattern == sparse(window)
    assert all(abs(a - b) > 1e-3 for a, b in zip(some_scores(scorer), some_scores(full), strict=True))


@pytest.mark.parametrize("theirs", SWITCHES)
def test_each_switch_is_its_own(tmp_path: Path, theirs: str) -> None:
    """Each key of config.json turns one direction off."""
    folder = save_sparse_cross_encoder(tmp_path, AttentionPattern(4))
    edit_json(folder / "config.json", {theirs: False})
    scorer = hf_weights.load(folder)

    assert isinstance(scorer, CrossEncoder)
    assert scorer.config.pattern == AttentionPattern(4, **{SWITCHES[theirs]: False})


def test_a_bi_encoder(tmp_path: Path) -> None:
    """A sentence-transformers folder."""
    scorer = hf_weights.load(save_bi_encoder(tmp_path, pooling="cls", normalize=False, max_seq_length=99))

    assert isinstance(scorer, BiEncoder)
    config = scorer.config
    assert (config.pooling, config.similarity, config.max_tokens) == ("cls", "dot", 99)


def test_a_bi_encoder_saved_by_sentence_transformers_6(tmp_path: Path) -> None:
    """Version 6 names the pooling in one key, modules by other paths, and keeps the limit with the tokenizer."""
    model = tiny_hf_encoder()
    before = hf_weights.load(save_bi_encoder(tmp_path / "before", model, pooling="cls", max_seq_length=99))
    folder = save_bi_encoder(tmp_path / "now", model)
    (folder / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}', encoding="utf-8")
    edit_json(folder / "tokenizer_config.json", {"model_max_length": 99})
    pooling = {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    modules = {
        "": "base.modules.transformer.Transformer",
        "1_Pooling": "sentence_transformer.modules.pooling.Pooling",
        "2_Normalize": "base.modules.normalize.Normalize",
    }
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
            for index, (path, kind) in enumerate(modules.items())
        ],
    )

    scorer = hf_weights.load(folder)

    assert scorer.config == before.config
    assert some_scores(scorer) == some_scores(before)


def test_a_cross_encoder_saved_by_sentence_transformers_6(tmp_path: Path) -> None:
    """Version 6 writes modules.json for cross-encoders too, with one Transformer and no pooling."""
    model = tiny_hf_cross_encoder()
    before = hf_weights.load(save_cross_encoder(tmp_path / "before", model))
    folder = save_cross_encoder(tmp_path / "now", model)
    transformer = {
        "idx": 0,
        "name": "0",
        "path": "",
        "type": "sentence_transformers.base.modules.transformer.Transformer",
    }
    write_json(folder / "modules.json", [transformer])
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})

    scorer = hf_weights.load(folder)

    assert scorer.config == before.config
    assert some_scores(scorer) == some_scores(before)


def test_a_cosine_that_the_folder_asks_for(tmp_path: Path) -> None:
    """A folder without Normalize whose similarity is the cosine is scored by the cosine."""
    folder = save_bi_encoder(tmp_path, normalize=False)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})

    assert hf_weights.load(folder).config.similarity == "cosine"


@pytest.mark.parametrize("save", [save_cross_encoder, save_sparse_cross_encoder, save_bi_encoder])
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_pickled_weights(tmp_path: Path, save: Callable[[Path], Path], options: dict[str, bool]) -> None:
    """pytorch_model.bin, in either of torch's formats, gives the scores of model.safetensors."""
    folder = save(tmp_path)
    before = some_scores(hf_weights.load(folder))
    as_pickle(folder, **options)

    assert some_scores(hf_weights.load(folder)) == before


def test_old_names_and_buffers(tmp_path: Path) -> None:
    """LayerNorms with gamma and beta, and the integer buffers of old files, load like today's weights."""
    folder = save_cross_encoder(tmp_path)
    before = some_scores(hf_weights.load(folder))

    def age(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items()
        }
        buffers = {f"bert.embeddings.{name}": torch.arange(512)[None] for name in ("position_ids", "token_type_ids")}
        return old | buffers

    change_weights(folder, age)

    assert some_scores(hf_weights.load(folder)) == before


def test_half_precision_weights_stay_so_but_for_the_head(tmp_path: Path) -> None:
    """Weights keep the dtype they were saved in; the head, which breaks ties, is float32."""
    folder = save_cross_encoder(tmp_path)
    change_weights(folder, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    scorer = hf_weights.load(folder)

    assert {p.dtype for name, p in scorer.named_parameters() if name.startswith("head.")} == {torch.float32}
    assert {p.dtype for name, p in scorer.named_parameters() if not name.startswith("head.")} == {torch.float16}
    ready = scorer.prepare(device=torch.device("cpu"), dtype=torch.float32)
    assert torch.tensor(some_scores(ready)).isfinite().all()


def test_a_longer_config_stretches_the_position_table(tmp_path: Path) -> None:
    """1024 positions in config.json over a table of 512: the table is interpolated, and nothing else changes."""
    folder = save_sparse_cross_encoder(tmp_path)
    table = hf_weights.load(folder).state_dict()["encoder.embeddings.position.weight"]
    edit_json(folder / "config.json", {"max_position_embeddings": 1024})

    scorer = hf_weights.load(folder)

    stretched = scorer.state_dict()["encoder.embeddings.position.weight"]
    assert torch.equal(stretched, interpolate_positions(table, 1024))
    assert scorer.config.max_tokens == 1024


def test_a_stored_long_table_is_taken_as_it_is(tmp_path: Path) -> None:
    """A table of as many rows as config.json says is not touched, whatever `base_max_position_embeddings` says."""
    model = tiny_hf_cross_encoder(positions=1024)
    folder = save_sparse_cross_encoder(tmp_path, model=model)
    edit_json(folder / "config.json", {"base_max_position_embeddings": 512})
    edit_json(folder / "tokenizer_config.json", {"model_max_length": 512})

    scorer = hf_weights.load(folder)

    stored = model.bert.embeddings.position_embeddings.weight
    assert torch.equal(scorer.state_dict()["encoder.embeddings.position.weight"], stored)
    assert scorer.config.max_tokens == 1024


def test_added_tokens_grow_the_vocabulary(tmp_path: Path) -> None:
    """The embedding table counts, not `vocab_size`."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"vocab_size": 7})

    assert hf_weights.load(folder).config.encoder.vocab_size == tiny_tokenizer().get_vocab_size()


# Tokenizers


def test_truncation_and_padding_of_a_saved_tokenizer_are_off(tmp_path: Path) -> None:
    """A tokenizer saved with a limit of 8 and padding to 8 gives all pieces of a text, and no others."""
    folder = save_cross_encoder(tmp_path)
    saved = tiny_tokenizer()
    saved.enable_truncation(8)
    saved.enable_padding(length=8)
    saved.save(str(folder / "tokenizer.json"))

    tokenizer = load_model(str(folder)).tokenizer

    assert len(tokenizer.encode("the " * 30, add_special_tokens=False).ids) == 30
    assert len(tokenizer.encode("the", add_special_tokens=False).ids) == 1


def test_a_folder_with_a_vocabulary_alone(tmp_path: Path) -> None:
    """vocab.txt, a slow tokenizer's file, gives the ids that tokenizer.json would."""
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


def test_no_tokenizer(tmp_path: Path) -> None:
    """A folder with weights alone."""
    folder = save_cross_encoder(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"no tokenizer\.json and no vocab\.txt"):
        load_model(str(folder))


def test_a_tokenizer_without_sep(tmp_path: Path) -> None:
    """Without [SEP] there is no BERT input."""
    folder = save_cross_encoder(tmp_path)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(text.replace("[SEP]", "</s>"), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"the tokenizer has no \[SEP\]"):
        load_model(str(folder))


# What is refused


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta' with absolute positions is not supported"),
        ({"model_type": "modernbert"}, "model_type 'modernbert'"),
        ({"model_type": None}, "model_type None"),
        ({"position_embedding_type": "relative_key"}, "model_type 'bert' with relative_key positions"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported, only the exact gelu"),
        ({"hidden_act": "gelu_new"}, "activation 'gelu_new' is not supported"),
    ],
)
def test_another_kind_of_model_is_refused(tmp_path: Path, settings: dict[str, str | None], found: str) -> None:
    """The message says what was found and what is supported."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", settings)
    with pytest.raises(BadCheckpoint, match=f"{found}.*{SUPPORTED_IS_NAMED}"):
        load_model(str(folder))


def test_a_classifier_of_three_labels_is_refused(tmp_path: Path) -> None:
    """An inference model is no re-ranker."""
    folder = save_cross_encoder(tmp_path, num_labels=3)
    with pytest.raises(BadCheckpoint, match=rf"classifier of one output, this model has 3.*{SUPPORTED_IS_NAMED}"):
        load_model(str(folder))


def test_an_encoder_without_classifier_is_refused(tmp_path: Path) -> None:
    """A bare encoder, whose modules.json was left behind."""
    folder = save_bi_encoder(tmp_path)
    (folder / "modules.json").unlink()
    with pytest.raises(BadCheckpoint, match=f"this model has no; {SUPPORTED_IS_NAMED}"):
        load_model(str(folder))


@pytest.mark.parametrize("missing", [*SWITCHES, "attention_window_size"])
def test_a_sparse_config_with_a_hole_is_refused(tmp_path: Path, missing: str) -> None:
    """Rather than being run with full attention, which its weights would allow."""
    folder = save_sparse_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {}, remove=(missing,))
    with pytest.raises(BadCheckpoint, match=r"a sparse cross-encoder whose .* must not be run as full attention"):
        load_model(str(folder))


@pytest.mark.parametrize("kept", ["attention_window_size", "query_cls_attention", "architectures"])
def test_any_trace_of_a_sparse_config_is_noticed(tmp_path: Path, kept: str) -> None:
    """A window, a switch or the architecture's name alone is enough to refuse full attention."""
    folder = save_sparse_cross_encoder(tmp_path)
    names = {*SWITCHES, "attention_window_size", "architectures"} - {kept}
    edit_json(folder / "config.json", {}, remove=tuple(names))
    with pytest.raises(BadCheckpoint, match="must not be run as full attention"):
        load_model(str(folder))


def test_a_negative_window_is_refused(tmp_path: Path) -> None:
    """In the words of the pattern."""
    folder = save_sparse_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"attention_window_size": -1})
    with pytest.raises(BadCheckpoint, match="window must be at least 0"):
        load_model(str(folder))


@pytest.mark.parametrize("pooling", ["max", "mean_sqrt_len", "none"])
def test_another_pooling_is_refused(tmp_path: Path, pooling: str) -> None:
    """Only the mean and [CLS] are known."""
    folder = save_bi_encoder(tmp_path, pooling=pooling)
    with pytest.raises(BadCheckpoint, match=r"pooling \[.*\] is not supported, only mean or cls"):
        load_model(str(folder))


def test_two_poolings_at_once_are_refused(tmp_path: Path) -> None:
    """sentence-transformers would put both vectors end to end."""
    folder = save_bi_encoder(tmp_path)
    edit_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    with pytest.raises(BadCheckpoint, match=r"pooling .*cls.*mean.* is not supported"):
        load_model(str(folder))


def test_other_modules_are_refused(tmp_path: Path) -> None:
    """A Dense layer behind the pooling is not skipped in silence."""
    folder = save_bi_encoder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[2]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"modules .*'Dense'.* are not supported"):
        load_model(str(folder))


# Weights that do not fit


def test_no_weights(tmp_path: Path) -> None:
    """A folder of settings alone."""
    folder = save_cross_encoder(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"no model\.safetensors and no pytorch_model\.bin"):
        load_model(str(folder))


def test_a_missing_tensor(tmp_path: Path) -> None:
    """The message names it."""
    folder = save_cross_encoder(tmp_path)
    lost = "bert.encoder.layer.1.output.dense.bias"
    change_weights(folder, lambda weights: {name: tensor for name, tensor in weights.items() if name != lost})
    with pytest.raises(BadCheckpoint, match=lost.removeprefix("bert.")):
        load_model(str(folder))


def test_a_missing_position_table(tmp_path: Path) -> None:
    """Which is looked at before the rest."""
    folder = save_cross_encoder(tmp_path)
    lost = "bert.embeddings.position_embeddings.weight"
    change_weights(folder, lambda weights: {name: tensor for name, tensor in weights.items() if name != lost})
    with pytest.raises(BadCheckpoint, match="position_embeddings"):
        load_model(str(folder))


def test_more_layers_in_the_config_than_in_the_weights(tmp_path: Path) -> None:
    """A config.json of another model."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"num_hidden_layers": 3})
    with pytest.raises(BadCheckpoint, match=r"layer\.2"):
        load_model(str(folder))


def test_fewer_layers_in_the_config_than_in_the_weights(tmp_path: Path) -> None:
    """Layers are not dropped in silence."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"num_hidden_layers": 1})
    with pytest.raises(BadCheckpoint):
        load_model(str(folder))


@pytest.mark.parametrize("settings", [{"intermediate_size": 65}, {"max_position_embeddings": 256}, {"hidden_size": 64}])
def test_shapes_that_differ_from_the_config(tmp_path: Path, settings: dict[str, int]) -> None:
    """The message names tensors of another shape."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", settings)
    with pytest.raises(BadCheckpoint, match=r"of another shape: .'encoder"):
        load_model(str(folder))


def test_heads_that_do_not_divide_the_hidden_size(tmp_path: Path) -> None:
    """Also a config.json that does not fit."""
    folder = save_cross_encoder(tmp_path)
    edit_json(folder / "config.json", {"num_attention_heads": 5})
    with pytest.raises(BadCheckpoint, match="hidden_size 32 is not a multiple of num_heads 5"):
        load_model(str(folder))


def test_a_damaged_file(tmp_path: Path) -> None:
    """A download that broke off."""
    folder = save_cross_encoder(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        load_model(str(folder))


class RunsCode:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, legacy: bool) -> None:
    """Weights with a foreign object in them are not loaded, and its code does not run."""
    folder = save_cross_encoder(tmp_path / "model")
    trace = tmp_path / "trace"
    weights = {**load_file(folder / "model.safetensors"), "object": RunsCode(trace)}
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin"):
        load_model(str(folder))

    assert not trace.exists()


def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    """A pickle that torch did not write."""
    folder = save_cross_encoder(tmp_path / "model")
    trace = tmp_path / "trace"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(trace), protocol=2))
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match=r"pytorch_model\.bin"):
        load_model(str(folder))

    assert not trace.exists()


# Where a model is looked for


@pytest.mark.parametrize("model", ["./missing", "/missing/folder", "~/missing", "../missing"])
def test_a_path_that_leads_nowhere(model: str) -> None:
    """What looks like a path is not asked of the hub."""
    with pytest.raises(BadCheckpoint, match=f"^{model}: no such folder"):
        hf_files.find_folder(model)


@pytest.mark.parametrize("model", ["a/b/c", "two words", "-"])
def test_a_name_that_no_model_can_have(model: str) -> None:
    """Neither a folder nor a name that the hub allows."""
    with pytest.raises(BadCheckpoint):
        hf_files.find_folder(model)


def test_an_empty_folder(tmp_path: Path) -> None:
    """The message says what a folder needs."""
    with pytest.raises(BadCheckpoint, match=r"no config\.json; a model folder needs config\.json, weights and a tok"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "found"), [("{", "not JSON"), ("[]", "expected a JSON object"), ("\ud83d", "not JSON")]
)
def test_a_config_that_is_no_json_object(tmp_path: Path, text: str, found: str) -> None:
    """Damaged settings."""
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadCheckpoint, match=found):
        load_model(str(tmp_path))


def test_tiny_tokenizer_is_the_one_in_the_file() -> None:
    """tests/data/tiny_tokenizer.json is what `support.tokenizer` builds, and fits the tiny models."""
    from support.tokenizer import build_tokenizer

    assert build_tokenizer().to_str() == tiny_tokenizer().to_str()
    assert tiny_bert_config().vocab_size == tiny_tokenizer().get_vocab_size()
