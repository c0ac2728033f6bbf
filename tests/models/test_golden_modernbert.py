"""ModernBERT against `transformers` and `sentence-transformers`: re-rankers, Ettin's chain of modules, bi-encoders."""

import json
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer
from support.dense_scorers import pair_scores
from support.models import edit_json, random_ids, random_text, score_batch, write_json
from support.modernbert import (
    ETTIN,
    GRANITE_RERANKER,
    GTE_RERANKER,
    save_chain,
    save_ettin,
    save_model,
    tiny_modernbert,
    tiny_modernbert_encoder,
)
from support.refusals import assert_refused
from support.text_scores import assert_scores
from support.tokenizer import CLS_ID
from transformers import ModernBertForSequenceClassification

from bandrank.models import hf
from bandrank.models.architectures import SequenceCrossEncoder
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.positions import Rotary
from bandrank.models.loading import load_model
from bandrank_kernels import Backend

CLOSE = 1e-5  # float32 through five layers in another order of summation; scores are of the order of 1
LAYERS = "sliding_attention", "full_attention"
PUBLISHED = {
    "Alibaba-NLP/gte-reranker-modernbert-base": GTE_RERANKER,
    "ibm-granite/granite-embedding-reranker-english-r2": GRANITE_RERANKER,
    "ibm-granite/granite-embedding-97m-multilingual-r2": GRANITE_RERANKER | {"hidden_activation": "silu"},
    "layers and positions unlike any published ones": GRANITE_RERANKER
    | {"layer_types": [*LAYERS, *LAYERS, LAYERS[0]], "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}


def ragged_texts() -> tuple[list[list[int]], list[list[list[int]]]]:
    """Returns three queries with 6, 0 and 2 candidates, some of them far longer than the window of 17 rows."""
    rng = random.Random(0)
    lengths = [[0, 1, 16, 17, 63, 12], [], [600, 5]]
    queries = [random_ids(rng, num_pieces) for num_pieces in (7, 3, 30)]
    return queries, [[random_ids(rng, num_pieces) for num_pieces in group] for group in lengths]


def their_score(model: ModernBertForSequenceClassification, query: list[int], candidate: list[int]) -> float:
    """Returns the library's logit of a pair."""
    with torch.inference_mode():
        return float(model(torch.tensor([[CLS_ID, *query, *candidate]])).logits[0, 0])


def our_scores(
    scorer: Any, queries: list[list[int]], candidates: list[list[list[int]]], backend: Backend = "vectorized"
) -> list[float]:
    """Returns our scores of one batch."""
    scorer.encoder.prepare_for(Execution(backend))
    with torch.inference_mode():
        return scorer(score_batch(queries, candidates)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)
def test_scores_are_those_of_transformers(tmp_path: Path, published: Mapping[str, Any], attention: str) -> None:
    """Scores agree in company, alone and by either backend, with heads and positions as in the published models."""
    model = tiny_modernbert(published, attn_implementation=attention)
    scorer = hf.load(save_model(tmp_path, model))
    assert isinstance(scorer, SequenceCrossEncoder)
    assert scorer.config.pooling == published["classifier_pooling"]
    assert scorer.config.max_tokens == 8192
    queries, candidates = ragged_texts()
    expected = pair_scores(partial(their_score, model), queries, candidates)

    assert our_scores(scorer, queries, candidates) == pytest.approx(expected, abs=CLOSE)
    assert our_scores(scorer, queries, candidates, "reference") == pytest.approx(expected, abs=CLOSE)
    alone = pair_scores(lambda query, ids: our_scores(scorer, [query], [[ids]])[0], queries, candidates)
    assert alone == pytest.approx(expected, abs=CLOSE)
    assert max(expected) - min(expected) > 1000 * CLOSE


def test_the_longest_sequence(tmp_path: Path) -> None:
    """One pass has all 8,192 positions; only a longer pair is read in passages."""
    model = tiny_modernbert(num_hidden_layers=2, num_attention_heads=1, attn_implementation="sdpa")
    scorer = hf.load(save_model(tmp_path, model))
    rng = random.Random(0)
    query, longest = random_ids(rng, 5), random_ids(rng, 8192 - 1 - 6 - 1)

    scores = our_scores(scorer, [query], [[longest]])

    assert scores == pytest.approx([their_score(model, query, longest)], abs=CLOSE)
    assert scorer.num_rows(len(query), len(longest)) == 8192
    assert scorer.num_rows(len(query), len(longest) + 1) > 8192 + len(query)


def test_settings_as_they_were_published_and_as_they_are_saved_now(tmp_path: Path) -> None:
    """A key for each base and the spacing of layers say the same as `rope_parameters` and `layer_types`."""
    model = tiny_modernbert(ETTIN)
    new = hf.load(save_model(tmp_path / "new", model))
    old = save_model(tmp_path / "old", model, **ETTIN)
    saved = json.loads((old / "config.json").read_text())
    write_json(old / "config.json", {k: v for k, v in saved.items() if k not in ("rope_parameters", "layer_types")})
    assert "layer_types" in saved
    assert isinstance(new, SequenceCrossEncoder)

    assert hf.load(old).config == new.config
    assert new.config.encoder.global_rotary == new.config.encoder.local_rotary == Rotary(160000.0)  # type: ignore[attr-defined]  # of its config's variant


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm_bias": True}, r"a ModernBERT with \{'norm_bias': True\} is not supported"),
        ({"hidden_activation": "relu"}, "'hidden_activation': 'relu'"),
        ({"classifier_activation": "silu"}, "'classifier_activation': 'silu'"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
        ({"layer_types": ["full_attention"] * 4 + ["chunked_attention"]}, "layers of types .*chunked_attention"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            "rotary positions of .*dynamic.* are not supported",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
            "config.json: Missing .* 'rope_type'='longrope': {",
        ),
    ],
)
def test_settings_that_are_not_supported(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Ignoring these settings would give wrong scores."""
    assert_refused(save_model(tmp_path, tiny_modernbert(), **settings), message)


def test_ettin_is_the_chain_of_its_modules(tmp_path: Path) -> None:
    """The modules are those of cross-encoder/ettin-reranker-17m-v1, and scores are compared before any activation."""
    folder = save_ettin(tmp_path)
    model = load_model(str(folder))
    assert isinstance(model.scorer, SequenceCrossEncoder)
    assert model.scorer.config.max_tokens == 7999
    rng = random.Random(0)
    query, texts = random_text(rng, 5), ["", "A", *(random_text(rng, n) for n in (8, 63, 400)), "Unknown ☃ sign, 42."]
    theirs = TheirCrossEncoder(str(folder), device="cpu")
    expected = [theirs.predict([(query, text)], show_progress_bar=False)[0] for text in texts]

    assert_scores(folder, query, texts, expected, close=CLOSE)


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        ("1_Pooling", {"pooling_mode": "max"}, "pooling max are not supported"),
        ("2_Dense", {"activation_function": "torch.nn.modules.activation.Tanh"}, "activation Tanh, only GELU"),
        ("4_Dense", {"activation_function": "torch.nn.modules.activation.ReLU"}, "activation ReLU, only Identity"),
        ("4_Dense", {"out_features": 2}, "one output, the last Dense module has 2"),
        ("2_Dense", {"use_residual": True}, "residual"),
        ("2_Dense", {"module_output_name": "hidden"}, "2_Dense: module_output_name 'hidden' is not"),
        ("4_Dense", {"module_input_name": "hidden"}, "4_Dense: module_input_name 'hidden' is not"),
        (".", {"norm_eps": 1e-6}, "norm_eps 1e-06 beside a LayerNorm"),
    ],
)
def test_chains_that_are_not_supported(tmp_path: Path, module: str, settings: dict[str, Any], message: str) -> None:
    """Leaving out what such a module computes would give wrong scores."""
    folder = save_ettin(tmp_path)
    edit_json(folder / module / "config.json", settings)

    assert_refused(folder, message)


def test_bi_encoder(tmp_path: Path) -> None:
    """Like Alibaba-NLP/gte-modernbert-base, the model compares states of [CLS] by the cosine, without a head."""
    pooling = {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}
    folder = save_chain(
        tmp_path, tiny_modernbert_encoder(classifier_activation="silu"), [("Pooling", pooling), ("Normalize", {})]
    )
    rng = random.Random(0)
    query, *texts = (random_text(rng, n) for n in (5, 1, 8, 63, 400))
    theirs = SentenceTransformer(str(folder), device="cpu")

    assert_scores(folder, query, texts, (theirs.encode(texts) @ theirs.encode(query)).tolist(), close=CLOSE)
