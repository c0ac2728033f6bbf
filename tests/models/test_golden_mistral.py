"""Llama, Mistral and Ministral 3 as bi-encoders against `sentence-transformers`; as re-rankers they are refused."""

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from support.eurobert import CLOSE, LIKE_BERT, LIKE_LLAMA, save_embedder, save_like_llama, tiny
from support.grouped import LLAMA
from support.models import edit_json, write_json
from support.refusals import assert_refused
from support.text_scores import assert_scores, scores_of_texts
from transformers import LlamaForCausalLM, LlamaModel, Ministral3Model, MistralForSequenceClassification, MistralModel

from bandrank.models.loading import load_model

QUERY, TEXTS = "where do bees live?", ["In hives.", "", "bees and honey " * 70, "é 🐝 ñandú: x", "?"]
# Of intfloat/e5-mistral-7b-instruct, in part.
WORDS = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
E5 = {"web_search_query": WORDS, "sts_query": "Instruct: Retrieve semantically similar text\nQuery: "}


def similarities(library: SentenceTransformer, **more: Any) -> list[float]:
    """The library's scores of all of `TEXTS`. more: arguments that encode the query."""
    return (library.encode_document(TEXTS) @ library.encode_query(QUERY, **more)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "settings", "templates"),
    [
        (MistralModel, {}, LIKE_BERT),
        (MistralModel, {"sliding_window": None}, LIKE_LLAMA),
        (LlamaModel, {}, LIKE_BERT),
        (LlamaModel, {"rope_parameters": LLAMA["rope_scaling"] | {"rope_theta": 500_000.0}}, LIKE_LLAMA),
        (LlamaModel, {"is_causal": False}, LIKE_BERT),
        (MistralModel, {"is_causal": False}, LIKE_LLAMA),
        (Ministral3Model, {}, LIKE_LLAMA),
        (Ministral3Model, {"is_causal": False}, LIKE_LLAMA),
    ],
)
def test_bi_encoders(tmp_path: Path, kind: Any, settings: dict[str, Any], templates: tuple[str, str]) -> None:
    """Of the last token's state, with plain positions and with others; without a causal mask, of the mean."""
    pooling = "lasttoken" if settings.get("is_causal", True) else "mean"
    folder = save_embedder(tmp_path, tiny(kind, **settings), pooling, templates)

    assert_scores(folder, QUERY, TEXTS, similarities(SentenceTransformer(str(folder), device="cpu")), close=CLOSE)


@pytest.mark.parametrize(("window", "longest"), [(4096, 4096), (None, 8192), (40, 40)])
def test_texts_fit_the_sliding_window(tmp_path: Path, window: int | None, longest: int) -> None:
    """In which each token sees all before it; what is longer is cut, as by the library if it reads no more."""
    folder = save_embedder(tmp_path, tiny(MistralModel, sliding_window=window), "lasttoken", LIKE_BERT)
    library = SentenceTransformer(str(folder), device="cpu")
    library.max_seq_length = longest
    if longest == 4096:  # the library's default
        edit_json(folder / "config.json", {}, remove=("sliding_window",))

    assert load_model(str(folder)).scorer.config.max_tokens == longest
    assert_scores(folder, QUERY, TEXTS, similarities(library), close=CLOSE)


@pytest.mark.parametrize(("more", "factor"), [({}, 1.1386), ({"mscale": 0.8, "mscale_all_dim": 0.5}, 1.0388)])
def test_texts_before_queries_are_scaled_up(tmp_path: Path, more: dict[str, float], factor: float) -> None:
    """As in nvidia/Nemotron-3-Embed-1B-BF16; behind the texts of training, positions would scale queries of attention.

    more: of positions whose cosines and sines have a factor.
    """
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 48}
    rope |= {"llama_4_scaling_beta": 0.1, **more}
    model = tiny(Ministral3Model, is_causal=False, rope_parameters=rope)
    folder = save_embedder(tmp_path, model, "mean")
    library = SentenceTransformer(str(folder), device="cpu")
    library.max_seq_length = 48

    scorer = load_model(str(folder)).scorer
    assert scorer.config.max_tokens == 48
    assert scorer.overflows_float16
    assert_scores(folder, QUERY, TEXTS, similarities(library), close=CLOSE)
    assert model.rotary_emb.attention_scaling == pytest.approx(factor, abs=1e-4)


def test_what_e5_mistral_says_elsewhere(tmp_path: Path) -> None:
    """Its prompt for web search, among several; and the token behind a text, which only tokenizer_config.json has."""
    whole = save_embedder(tmp_path / "whole", tiny(MistralModel), "lasttoken", LIKE_BERT)
    published = save_embedder(tmp_path / "published", tiny(MistralModel), "lasttoken", LIKE_LLAMA)
    write_json(published / "config_sentence_transformers.json", {"prompts": E5, "default_prompt_name": None})
    write_json(whole / "config_sentence_transformers.json", {})
    edit_json(published / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "add_eos_token": True})
    library, ours = SentenceTransformer(str(whole), device="cpu"), load_model(str(published))

    for instruction, prompt in (("", WORDS), ("Find the opposite.", "Instruct: Find the opposite.\nQuery: ")):
        found = scores_of_texts(ours, QUERY, TEXTS, instruction)
        assert found == pytest.approx(similarities(library, prompt=prompt), abs=CLOSE)
    edit_json(published / "tokenizer_config.json", {"eos_token": "</s>"})
    assert_refused(published, "the tokenizer has no eos_token '</s>'")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"is_causal": False, "auto_map": {"AutoModel": "own.MistralModel"}}, "not run, and is_causal false is not"),
        ({"auto_map": {"AutoModel": "modeling_gritlm7b.MistralForCausalLM"}}, "code of its own .* is not supported"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Because they would give wrong scores."""
    assert_refused(save_embedder(tmp_path, tiny(MistralModel), "lasttoken"), message, settings)


@pytest.mark.parametrize("kind", [LlamaForCausalLM, MistralForSequenceClassification])
def test_a_reranker_is_refused(tmp_path: Path, kind: Any) -> None:
    """Its folder does not say in which words it was trained to be asked."""
    assert_refused(
        save_like_llama(tmp_path, tiny(kind)), "that re-ranks is not supported: nothing says in which words it is asked"
    )
