"""ColBERT in the formats of PyLate and `sentence-transformers`, compared with the latter, which reads both."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from support.decoders import PUBLISHED, save_decoder, tiny_decoder, tiny_decoder_config
from support.models import edit_json, random_text, tiny_hf_encoder
from support.modernbert import HIDDEN_SIZE, MODERN_COLBERT, save_pylate, tiny_modernbert_encoder
from support.precomputing import tiny_colbert
from support.refusals import assert_refused
from support.text_scores import scores_of_texts
from support.tokenizer import CLS_ID, MASK_ID, SEP_ID
from transformers import Qwen3Model

from bandrank.models import hf
from bandrank.models.architectures import ColBERT
from bandrank.models.loading import load_model

CLOSE = 1e-4  # float32; a sum of 11 cosines


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attend_to_expansion_tokens": True},
        {"do_query_expansion": False},
        {"do_query_expansion": None},
        {"skiplist_words": None},
        {"similarity_fn_name": "cosine"},
        {"skiplist_words": []},
        {"query_prefix": None, "document_prefix": None},
        {"query_prefix": "", "document_prefix": "[unused1]"},
        {"prompts": {"query": "the man ", "document": "she "}},
        {"prompts": {"query": "who ", "document": ""}, "query_prefix": "", "document_prefix": ""},
    ],
    ids=str,
)
def test_scores_are_those_of_sentence_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The settings vary those of lightonai/GTE-ModernColBERT-v1; the texts include short and long queries, punctuation
    and texts that are cut.
    """
    assert_alike(save_pylate(tmp_path / "pylate", **settings), tmp_path / "saved")


GELU, TANH = ("torch.nn.modules.activation.GELU", "torch.nn.modules.activation.Tanh")


@pytest.mark.parametrize(
    "layers",
    [
        [{"out_features": 64, "use_residual": True}, {"use_residual": True}],
        [{"out_features": HIDDEN_SIZE, "use_residual": True}, {}],
        [{"out_features": 40, "use_residual": True, "activation_function": GELU}, {"use_residual": True}],
        [{"out_features": HIDDEN_SIZE, "use_residual": True, "activation_function": TANH, "bias": True}],
    ],
    ids=str,
)
def test_several_dense_layers(tmp_path: Path, layers: list[dict[str, Any]]) -> None:
    """Layers without activation and bias are computed as one product."""
    folder = save_pylate(tmp_path / "pylate", layers=layers)
    assert_alike(folder, tmp_path / "saved")
    scorer = hf.load(folder)
    assert isinstance(scorer, ColBERT)
    assert scorer.representation_size == layers[-1].get("out_features", 16)
    assert bool(scorer.config.dense) == any("activation_function" in layer for layer in layers)


def test_rows_that_see_no_token(tmp_path: Path) -> None:
    """[MASK] rows may lie outside the window of every token, as in lightonai/Reason-ModernColBERT, whose queries have
    128 tokens: local attention adds nothing to them.
    """
    narrow = tiny_modernbert_encoder(MODERN_COLBERT, local_attention=16)
    assert_alike(save_pylate(tmp_path / "pylate", narrow, query_length=32), tmp_path / "saved")


def assert_alike(folder: Path, saved: Path) -> None:
    """Asserts that our scores are the library's, from a folder and from what the library saves after loading it."""
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    theirs.save(str(saved))
    rng = random.Random(0)
    queries = [random_text(rng, 3), random_text(rng, 30)]
    texts = ["A", f"{random_text(rng, 8)}, {random_text(rng, 3)}.", random_text(rng, 63), random_text(rng, 400)]
    expected = [
        [(theirs.encode_query(query) @ theirs.encode_document(text).T).amax(-1).sum() for text in texts]
        for query in queries
    ]
    for each in (folder, saved):
        model = load_model(str(each))
        assert isinstance(model.scorer, ColBERT)
        scores = torch.tensor([scores_of_texts(model, query, texts) for query in queries])
        torch.testing.assert_close(scores, torch.tensor(expected), rtol=0, atol=CLOSE)
        assert scores.std() > 100 * CLOSE


def test_templates(tmp_path: Path) -> None:
    """A text becomes [CLS], marker, text and [SEP], and the length limits count all four."""
    scorer = hf.load(save_pylate(tmp_path))

    assert scorer.query_template.apply([60] * 40)[0] == [CLS_ID, 1, *[60] * 8, SEP_ID]
    assert len(scorer.candidate_template.apply([60] * 400)[0]) == 300


def test_a_colbert_of_bert(tmp_path: Path) -> None:
    """PyLate's format does not depend on the encoder's family."""
    assert isinstance(hf.load(save_pylate(tmp_path, tiny_hf_encoder())), ColBERT)


def test_what_is_not_supported(tmp_path: Path) -> None:
    """A layer with an activation of its own code, and a prefix that a prompt repeats, are refused."""
    folder = save_pylate(tmp_path / "dense")
    edit_json(folder / "1_Dense" / "config.json", {"activation_function": "mine.Tanh"})
    assert_refused(
        save_pylate(tmp_path / "prompts", prompts={"query": "[unused0]the man ", "document": ""}),
        r"the prefix '\[unused0\]' and a prompt that begins with it is not supported",
    )
    assert_refused(folder, "1_Dense: a Dense module with mine.Tanh is not supported")
    edit_json(folder / "1_Dense" / "config.json", {}, remove=("activation_function",))
    assert_refused(folder, "1_Dense: a Dense module of a ColBERT needs an activation_function")
    assert_refused(save_pylate(tmp_path / "two", layers=[{}, {"in_features": 8}]), "the weights do not load: mat1 and")


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("sentence_bert_config", {"query_expansion": {"strategy": "min", "length": 11}}, "filled up by .*'min'"),
        ("2_MultiVectorMask/config", {"skiplist_tasks": ["query", "document"]}, "a mask of .* is not supported"),
        ("2_MultiVectorMask/config", {"skiplist_tasks": []}, "a mask of .* is not supported"),
        ("1_Dense/config", {"module_output_name": "x"}, "1_Dense: a module on 'token_embeddings' and 'x'"),
        ("3_Normalize/config", {"module_input_name": "x"}, "3_Normalize: a module on 'x' and 'token_"),
        ("config_sentence_transformers", {"similarity_fn_name": "meanmaxsim"}, "similarity 'meanmaxsim'"),
    ],
)
def test_what_the_library_may_save_and_is_not_supported(
    tmp_path: Path, file: str, settings: dict[str, Any], message: str
) -> None:
    MultiVectorEncoder(str(save_pylate(tmp_path / "pylate")), device="cpu").save(str(tmp_path / "saved"))
    edit_json(tmp_path / "saved" / f"{file}.json", settings)
    assert_refused(tmp_path / "saved", message)


def test_a_decoder_is_no_colbert(tmp_path: Path) -> None:
    """A decoder has no [CLS], and its attention cannot mask single keys, for which a ColBERT made without a folder is
    refused too.
    """
    folder = save_pylate(tmp_path)
    save_decoder(folder, tiny_decoder(Qwen3Model, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]))
    assert_refused(folder, "a decoder as a ColBERT is not supported")
    with pytest.raises(ValueError, match="causal attention and DeBERTa cannot mask"):
        ColBERT(replace(tiny_colbert(attend_to_masks=False).config, encoder=tiny_decoder_config()))


def test_the_mask_that_the_tokenizer_names(tmp_path: Path) -> None:
    """jhu-clsp/mmBERT-base is a ModernBERT with Gemma's tokenizer, which writes the mask token as <mask>."""
    folder = save_pylate(tmp_path)
    for name in ("tokenizer", "tokenizer_config"):
        path = folder / f"{name}.json"
        path.write_text(path.read_text(encoding="utf-8").replace("[MASK]", "<mask>"), encoding="utf-8")

    scorer = hf.load(folder)

    assert scorer.config.mask_id == MASK_ID
