"""EmbeddingGemma 2 against `transformers` and `sentence-transformers`: alone, and among encoders of media."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from support.grouped import (
    EMBEDDING_GEMMA2,
    GLOBAL,
    IMAGE_ID,
    LOCAL,
    bounded_gemma_tokenizer,
    tiny_embedding_gemma2,
    tiny_multimodal_gemma2,
)
from support.models import as_served, edit_json, randomise, write_json, write_modules, write_template
from support.refusals import assert_refused
from support.text_scores import assert_scores, scores_of_texts
from torch import nn
from torch.nn.functional import normalize

from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank.models.windowed import windowed

CLOSE = 1e-6  # of cosines: another GELU differs by more
SIZE = EMBEDDING_GEMMA2["embedding_dim"]
PROMPTS = {"query": "task: search result | query: ", "document": "title: none | text: "}
QUERY, TEXTS = "where do bees live?", [" In hives.\n", "", "bees and honey " * 70, "é 🐝 ñandú: x", "?"]
SCALED = {
    LOCAL: {"rope_type": "default", "rope_theta": 100.0},
    GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
# As in google/embeddinggemma-2, but for what it does with parts that are no texts.
TEMPLATE = (
    "{%- for message in messages %}{% for item in message['content'] %}{% if item.get('type') == 'text' %}"
    "{{ item['text'] }}{% endif %}{% endfor %}{% endfor -%}"
)


def save_text_model(folder: Path, *, dense: bool = False, **more: Any) -> Path:
    """The folder of a random bi-encoder as sentence-transformers writes it. more: of the published settings."""
    start = folder / "start"
    tiny_embedding_gemma2(**more).save_pretrained(start)
    bounded_gemma_tokenizer().save(str(start / "tokenizer.json"))
    write_json(start / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", "pad_token": "<pad>"})
    modules: list[nn.Module] = [Transformer(str(start)), Pooling(SIZE, pooling_mode="mean")]
    if dense:
        modules.append(Dense(in_features=SIZE, out_features=20, activation_function=nn.Tanh()))
        randomise(modules[-1], seed=1)
    model = SentenceTransformer(modules=[*modules, Normalize()], device="cpu", prompts=PROMPTS)
    model.save(str(folder / "saved"))
    return folder / "saved"


def save_multimodal(folder: Path, template: str = TEMPLATE) -> Path:
    """A folder as Google publishes it."""
    folder = save_text_model(folder)
    tiny_multimodal_gemma2().save_pretrained(folder)
    modalities = {"text": {}, "image": {}, "message": {"format": "structured"}}
    edit_json(folder / "sentence_bert_config.json", {"modality_config": modalities})
    write_json(folder / "processor_config.json", {"processor_class": "EmbeddingGemma2Processor"})
    write_template(folder, template)
    return folder


@pytest.mark.parametrize(
    "more",
    [
        {"rope_parameters": SCALED, "rms_norm_eps": 0.1},
        {"dense": True, "sliding_window": 0},
        {"layer_types": [GLOBAL] * 3, "per_layer_config": {}},
    ],
)
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    """Of texts within and beyond the window, as loaded, as served, and from a checkpoint of ours."""
    folder = save_text_model(tmp_path, **more)
    library = SentenceTransformer(str(folder), device="cpu")
    theirs = (library.encode_document(TEXTS) @ library.encode_query(QUERY)).tolist()

    assert_scores(folder, QUERY, TEXTS, theirs, close=CLOSE)
    assert max(theirs) - min(theirs) > 10_000 * CLOSE
    as_served((near := load_model(str(folder))).scorer, torch.bfloat16)
    assert scores_of_texts(near, QUERY, TEXTS) == pytest.approx(theirs, abs=0.02)


def test_the_multimodal_model(tmp_path: Path) -> None:
    """Its text part, in texts with and without the token of an image, which stands for none."""
    model, theirs = load_model(str(save_multimodal(tmp_path))), tiny_multimodal_gemma2()
    config = model.scorer.config.encoder
    assert (config.heads, config.max_positions, config.overflows_float16) == (((2, 16), (2, 16), (1, 32)), 8192, True)
    words = [PROMPTS["query"] + QUERY, *(PROMPTS["document"] + text for text in TEXTS)]
    texts = [*(each.ids for each in bounded_gemma_tokenizer().encode_batch(words)), [2, 260, IMAGE_ID, 261, 1]]
    padded = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True)
    mask = torch.arange(padded.shape[1]) < torch.tensor([len(ids) for ids in texts])[:, None]
    with torch.inference_mode():
        states = theirs(padded, attention_mask=mask.long()).last_hidden_state * mask[..., None]
        ours = model.scorer.encode_candidates(Ragged.from_token_ids(texts)).values

    expected = normalize(states.sum(1), dim=-1)
    torch.testing.assert_close(ours, expected, rtol=0, atol=CLOSE)
    assert scores_of_texts(model, QUERY, TEXTS) == pytest.approx((expected[1:-1] @ expected[0]).tolist(), abs=CLOSE)


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE.replace("item['text']", "item['text'] | trim"),
        TEMPLATE.replace("-%}", "%}").replace("{%- for", "{{ bos_token }}{% for"),
        TEMPLATE.replace("{{ item", "<{{ message['role'] }}>{{ item"),
        "{{ raise_exception('roles must alternate') }}",
        "",
    ],
)
def test_other_templates_are_refused(tmp_path: Path, template: str) -> None:
    """So are all that no processor fills: a tokenizer puts no special tokens around what a template makes."""
    folder = save_multimodal(tmp_path, template)
    assert_refused(folder, "texts that are put into a chat template")
    write_template(folder, TEMPLATE)
    (folder / "processor_config.json").unlink()
    assert_refused(folder, "texts that are put into a chat template")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True}, "a text model of EmbeddingGemma 2 with {'attention_bias': True} is not supported"),
        ({"hidden_activation": "silu"}, "'hidden_activation': 'silu'"),
        ({"sliding_window": None}, "no number for sliding_window"),
        ({"hidden_size_per_layer_input": None}, "no number for hidden_size_per_layer_input"),
        ({"layer_types": [GLOBAL, "chunked_attention", GLOBAL]}, "layers of types .*chunked_attention.* are not supp"),
        ({"layer_types": [LOCAL] * 3}, "layers of types .* are not supported"),
        ({"layer_types": [GLOBAL]}, "windows must be those of 3 layers, got 1"),
        ({"layer_types": None}, "layers of types .* are not supported"),
        ({"per_layer_config": {"2": {"head_dim": 32, "skip": ["mlp"]}}}, r"that differ in \['head_dim', 'skip'\]"),
        (
            {"rope_parameters": SCALED | {LOCAL: {"rope_type": "longrope", "rope_theta": 1e4}}},
            "rotary positions of .*longrope",
        ),
        ({"rope_parameters": {LOCAL: SCALED[LOCAL]}}, "rope_theta of rotary positions must be a number"),
        ({"rope_parameters": None}, "rope_theta of rotary positions must be a number"),
    ],
)
def test_settings_that_are_not_supported(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """They are refused, as they would give wrong scores."""
    assert_refused(save_text_model(tmp_path), message, settings)


def test_other_roles_are_refused(tmp_path: Path) -> None:
    """It may start a windowed cross-encoder, whose states are not projected; where that matters it is refused."""
    folder = save_text_model(tmp_path)
    scorer = load_model(str(folder)).scorer

    assert windowed(scorer, 4).config.encoder == scorer.config.encoder
    edit_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "max"})
    assert_refused(folder, "maxima, or joined poolings, of states that the encoder projects are not supported")
    write_modules(folder, {"": "models.Transformer", "2_Dense": "models.Dense"})
    assert_refused(folder, "a ColBERT of states that the encoder projects is not supported")
    (folder / "modules.json").unlink()
    assert_refused(folder, "a embedding_gemma2_text that re-ranks is not supported")
