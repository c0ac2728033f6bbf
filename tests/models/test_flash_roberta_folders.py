"""XLM-RoBERTa as Jina AI's own code saves it: the library's tensors under other names, and no `model_type`."""

import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import assert_the_same, save, tiny
from support.models import change_weights, edit_json
from support.refusals import assert_refused
from torch import Tensor

from bandrank.models import hf

LIKE = "BAAI/bge-reranker-v2-m3"
CODE = "configuration_xlm_roberta.XLMRobertaFlashConfig"
SETTINGS = {  # as jina-reranker-v2-base-multilingual has them
    "auto_map": {"AutoConfig": CODE, "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaModel"},
    "emb_pooler": None,
    "lora_adaptations": None,
    "max_position_embeddings": 1026,
    "position_embedding_type": "absolute",
    "use_flash_attn": True,
}
THEIRS = {  # Jina's names, by patterns of those of transformers
    r"roberta\.embeddings\.LayerNorm": "roberta.emb_ln",
    r"encoder\.layer\.": "encoder.layers.",
    r"attention\.output\.LayerNorm": "norm1",
    r"attention\.output\.dense": "mixer.out_proj",
    r"intermediate\.dense": "mlp.fc1",
    r"(layers\.\d+)\.output\.dense": r"\1.mlp.fc2",
    r"(layers\.\d+)\.output\.LayerNorm": r"\1.norm2",
}


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names the tensors as Jina's code does, which joins query, key and value in one."""
    theirs = {
        reduce(lambda name, pair: re.sub(*pair, name), THEIRS.items(), name): each for name, each in weights.items()
    }
    for name in [name for name in theirs if ".self.query." in name]:
        parts = [theirs.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        theirs[name.replace("attention.self.query", "mixer.Wqkv")] = torch.cat(parts)
    return theirs


def as_jina_saves_it(folder: Path, **more: Any) -> Path:
    """Saves a folder like Jina's, of the same numbers as `LIKE`. more: further settings."""
    save(folder, LIKE, tiny(LIKE, max_position_embeddings=1026))
    change_weights(folder, renamed)
    edit_json(folder / "config.json", SETTINGS | more, remove=("model_type",))
    return folder


@pytest.mark.parametrize("code", [CODE, f"jinaai/xlm-roberta-flash-implementation--{CODE}"])
def test_the_encoder_is_what_the_library_saves(tmp_path: Path, code: str) -> None:
    """Other tests compare scores with the library. The code may lie in another repository of the hub."""
    library = hf.load(save(tmp_path / "library", LIKE, tiny(LIKE, max_position_embeddings=1026)))
    theirs = hf.load(as_jina_saves_it(tmp_path / "theirs", auto_map={"AutoConfig": code}))

    assert_the_same(theirs, library)
    assert theirs.config.max_tokens == 1024


def test_numbers_that_a_folder_leaves_to_its_class(tmp_path: Path) -> None:
    """BERT's defaults are 12 heads and an epsilon of 1e-12."""
    folder = as_jina_saves_it(tmp_path)
    edit_json(folder / "config.json", {}, remove=("layer_norm_eps", "num_attention_heads"))
    found = hf.load(folder).config.encoder

    assert (found.num_heads, found.layer_norm_eps) == (16, 1e-5)


@pytest.mark.parametrize(
    "other", [{"position_embedding_type": "rotary"}, {"lora_adaptations": ["retrieval.query"]}, {"hidden_act": "relu"}]
)
def test_what_it_computes_otherwise_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """A folder may not name rotary positions beside a table of learnt ones, or adapters that it lacks."""
    assert_refused(
        as_jina_saves_it(tmp_path, **other),
        f"{next(iter(other.values()))}.*(is not supported|have none)".replace("[", r"\["),
    )


@pytest.mark.parametrize("auto_map", [{"AutoConfig": "configuration_other.OtherConfig"}, None, "text", {}])
def test_other_code_without_a_model_type_is_refused(tmp_path: Path, auto_map: Any) -> None:
    """Without a model_type, nothing but known code says what to compute."""
    assert_refused(as_jina_saves_it(tmp_path, auto_map=auto_map), "model_type None is not supported")
