"""EuroBERT and UltraBERT against `transformers` and `sentence-transformers`, which read padded batches of texts."""

import re
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer
from support.eurobert import CLOSE, LIKE_BERT, LIKE_LLAMA, save_embedder, save_like_llama, tiny
from support.models import HIDDEN_SIZE, edit_json
from support.modernbert import save_pylate
from support.refusals import assert_refused
from support.text_scores import assert_scores, scores_of_texts
from torch import nn
from transformers import (
    EuroBertConfig,
    EuroBertForMaskedLM,
    EuroBertForSequenceClassification,
    EuroBertModel,
    UltrabertForSequenceClassification,
    UltrabertModel,
)

from bandrank.models.loading import load_model

QUERY = "how do bees find their way home?"
TEXTS = ["By the sun.", "", "42 bees", '"No," she said\n\n', "bees and honey " * 70, "é 🐝 ñandú: x"]
EURO = {"rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 250_000.0, "rope_type": "default"}, "mask_token_id": 2}
# As UltraBERT's authors saved it.
ULTRA: dict[str, Any] = {"attention_windows": [8, 8, 0], "rope_theta": [10_000.0, 10_000.0, 2_560_000.0]}
SINCE = ("layer_types", "rope_parameters", "sliding_window")


def theirs(folder: Path) -> list[float]:
    """The library's scores of all of `TEXTS`, in one padded batch."""
    pairs = [(QUERY, text) for text in TEXTS]
    return CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=nn.Identity()).tolist()  # type: ignore[no-any-return]


def reranker(folder: Path, templates: tuple[str, str] = LIKE_LLAMA, **more: Any) -> Path:
    """The folder of a random EuroBERT that re-ranks. more: fields of its config."""
    return save_like_llama(folder, tiny(EuroBertForSequenceClassification, **EURO | more), templates)


def ultra_reranker(folder: Path, pooling: str = "cls") -> Path:
    """The folder of a random UltraBERT that re-ranks; the first two of its three layers are local."""
    plain = tiny(UltrabertForSequenceClassification, sliding_window=8, classifier_pooling=pooling)
    return save_like_llama(folder, plain, LIKE_BERT)


@pytest.mark.parametrize("pooling", ["late", "mean", "bos"])
@pytest.mark.parametrize("templates", [LIKE_LLAMA, LIKE_BERT])
def test_a_eurobert_that_reranks(tmp_path: Path, pooling: str, templates: tuple[str, str]) -> None:
    """By each pooling, with whatever its tokenizer puts between two texts."""
    folder = reranker(tmp_path, templates, classifier_pooling=pooling)

    assert_scores(folder, QUERY, TEXTS, theirs(folder), close=CLOSE)


def test_a_folder_of_the_authors_code(tmp_path: Path) -> None:
    """Which is not run; it calls the pooling `clf_pooling`, and has the base of positions beside their scaling."""
    folder = reranker(tmp_path, classifier_pooling="bos")
    expected = theirs(folder)
    code = {"AutoModel": "modeling_eurobert.EuroBertModel"}
    old = {"auto_map": code, "clf_pooling": "bos", "rope_theta": 250_000.0, "rope_scaling": None, "head_dim": None}
    edit_json(folder / "config.json", old, remove=("classifier_pooling", "rope_parameters"))

    assert_scores(folder, QUERY, TEXTS, expected, close=CLOSE)


def test_an_epsilon_that_the_folder_leaves_to_its_family(tmp_path: Path) -> None:
    """EuroBERT's default is ten times that of other Llamas."""
    folder = reranker(tmp_path)
    edit_json(folder / "config.json", {}, remove=("rms_norm_eps",))

    assert load_model(str(folder)).scorer.config.encoder.layer_norm_eps == EuroBertConfig().rms_norm_eps


@pytest.mark.parametrize("pooling", ["mean", "lasttoken", "cls"])
@pytest.mark.parametrize("kind", [EuroBertModel, UltrabertModel])
def test_bi_encoders(tmp_path: Path, kind: Any, pooling: str) -> None:
    """jinaai/jina-embeddings-v5-text-nano-retrieval is a EuroBERT that pools the last token, with prompts."""
    folder = save_embedder(tmp_path, tiny(kind), pooling)
    library = SentenceTransformer(str(folder), device="cpu")

    assert_scores(
        folder, QUERY, TEXTS, (library.encode_document(TEXTS) @ library.encode_query(QUERY)).tolist(), close=CLOSE
    )


@pytest.mark.parametrize("templates", [LIKE_LLAMA, LIKE_BERT])
def test_a_colbert(tmp_path: Path, templates: tuple[str, str]) -> None:
    """With and without a token behind a text; queries are filled up with the mask that the tokenizer names."""
    save_pylate(tmp_path, query_prefix="q", document_prefix="d", query_length=24, skiplist_words=[","])
    save_like_llama(tmp_path, tiny(EuroBertModel, hidden_size=HIDDEN_SIZE), templates)
    library = MultiVectorEncoder(str(tmp_path), device="cpu")
    query = library.encode_query(QUERY)
    expected = [float((query @ library.encode_document(text).T).amax(-1).sum()) for text in TEXTS]

    assert scores_of_texts(load_model(str(tmp_path)), QUERY, TEXTS) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_ultrabert_that_reranks(tmp_path: Path, pooling: str) -> None:
    """As it is saved now, and as its authors saved it."""
    folder = ultra_reranker(tmp_path, pooling)
    expected = theirs(folder)

    assert_scores(folder, QUERY, TEXTS, expected, close=CLOSE)
    edit_json(folder / "config.json", ULTRA, remove=SINCE)
    assert theirs(folder) == expected
    assert_scores(folder, QUERY, TEXTS, expected, close=CLOSE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention_bias": True, "mlp_bias": True}, "a EuroBERT with {'attention_bias': True, 'mlp_bias': True} is"),
        ({"classifier_pooling": "max"}, "classifier_pooling max is not supported, only one of ['bos', 'late', 'mean']"),
        ({"clf_pooling": "bos"}, "classifier_pooling bos and late is not supported"),
        ({"auto_map": {"AutoModel": "modeling_x.JinaEmbeddingsV5Model"}}, "code of its own (JinaEmbeddingsV5Model)"),
    ],
)
def test_a_eurobert_that_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Because it would give wrong scores."""
    assert_refused(reranker(tmp_path), re.escape(message), settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"attention_windows": [8, 4, 0]},
        {"attention_windows": 8},
        {"rope_theta": 10_000.0},
        {"rope_theta": [1.0, 2.0, 3.0]},
        {"layer_types": ["sliding_attention"] * 3},
        {"layer_types": ["chunked_attention"] * 3},
    ],
)
def test_an_ultrabert_that_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Because its local layers are not alike, or are of another kind."""
    edit_json(ultra_reranker(tmp_path) / "config.json", {}, remove=SINCE)
    assert_refused(tmp_path, "an UltraBERT with layers of", ULTRA | settings)


def test_positions_of_one_kind_of_layers_alone_are_refused(tmp_path: Path) -> None:
    """An UltraBERT has two."""
    rope = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}}
    assert_refused(ultra_reranker(tmp_path), "rope_theta of rotary positions must be a number above 0, got None", rope)


def test_heads_and_tokenizers_that_are_refused(tmp_path: Path) -> None:
    """Two outputs, none, and pairs that no token begins."""
    masked = save_like_llama(tmp_path / "masked", tiny(EuroBertForMaskedLM))
    bare = reranker(tmp_path / "bare", (LIKE_LLAMA[0], "$A $B"))

    assert_refused(reranker(tmp_path / "two", num_labels=2), "one output, but this model has 2")
    assert_refused(masked, "one output, but this model has none")
    assert_refused(bare, r"puts the tokens \[0\] around a text and \[\] around two")
