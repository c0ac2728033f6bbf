"""SPLADEs against `sentence-transformers`, and the folders of it that are refused."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from support.models import as_served, edit_json, random_text, tiny_hf_cross_encoder, write_json, write_modules
from support.refusals import assert_refused
from support.splades import MODERNBERT, POOLING, TRANSFORMER, save_splade, tiny_masked_lm
from support.text_scores import assert_scores, scores_of_texts

from bandrank.models.architectures.splade import Splade
from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged

CLOSE = 2e-6  # of the largest score, in float32 in another order of summation
FAMILIES = [
    "DistilBERT",
    "BERT with XLM-RoBERTa's tokens",
    "cross-encoder/stsb-roberta-base",
    "MPNet",
    "GTE without token types",
    MODERNBERT,
]
rng = random.Random(0)
QUERY = "who is the man? the man"
TEXTS = ["the man", "", "she was over there; who?", random_text(rng, 40), "ñandú ☂ of the man"]


def expected(folder: Path, query: str) -> list[float]:
    """The library's scores of the texts for a query."""
    theirs = SparseEncoder(str(folder), device="cpu")
    with torch.inference_mode():
        of_query = theirs.encode_query(query, convert_to_tensor=True)
        of_texts = [theirs.encode_document(text, convert_to_tensor=True).to_dense() for text in TEXTS]
        return [float(theirs.similarity(of_query.to_dense()[None], text[None])) for text in of_texts]


def assert_library_scores(folder: Path, query: str = QUERY) -> None:
    """Asserts that our scores of the texts are the library's."""
    theirs = expected(folder, query)
    assert_scores(folder, query, TEXTS, theirs, close=CLOSE * max(theirs))


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_sentence_transformers(name: str, table: bool, tmp_path: Path) -> None:
    """Whether the model reads queries or a table has their weights, as in the OpenSearch project's models."""
    folder = save_splade(tmp_path, name, table=table)
    for query in (QUERY, "☂"):
        assert_library_scores(folder, query)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_every_pooling_is_the_librarys(strategy: str, activation: str, tmp_path: Path) -> None:
    pooling = {"pooling_strategy": strategy, "activation_function": activation}
    folder = save_splade(tmp_path, pooling=pooling)
    assert_library_scores(folder)


def test_a_table_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """That of its tokenizer, where the transformer's limit may be another."""
    folder = save_splade(tmp_path, table=True)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 6})
    assert_library_scores(folder)
    edit_json(folder / "query_0_SparseStaticEmbedding" / "tokenizer_config.json", {"model_max_length": 3})
    assert_library_scores(folder)


@pytest.mark.parametrize("table", [False, True])
def test_both_sides_have_their_prompts(table: bool, tmp_path: Path) -> None:
    prompts = {"query": "find: ", "document": "the time of "}
    folder = save_splade(tmp_path, table=table, prompts=prompts, similarity_fn_name="dot")
    assert_library_scores(folder)


def test_a_decoder_may_have_a_matrix_of_its_own(tmp_path: Path) -> None:
    """In place of that of words."""
    name = "BERT with XLM-RoBERTa's tokens"
    folder = save_splade(tmp_path, name, model=tiny_masked_lm(name, tie_word_embeddings=False))
    assert_library_scores(folder)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("most", [60, 10_000])
def test_only_the_largest_weights_of_a_text_may_count(most: int, table: bool, tmp_path: Path) -> None:
    assert_library_scores(save_splade(tmp_path, table=table, max_active_dims=most))


def test_what_the_library_saves_now_is_read(tmp_path: Path) -> None:
    """Later versions save the transformer's task, and a class that others share."""
    start = save_splade(tmp_path / "start")
    modules = [Transformer(str(start), transformer_task="fill-mask", max_seq_length=20), SpladePooling()]
    SparseEncoder(modules=modules, device="cpu").save(str(tmp_path / "saved"), create_model_card=False)
    assert_library_scores(tmp_path / "saved")


def test_a_router_may_keep_its_modules_in_folders(tmp_path: Path) -> None:
    """As the library saves one that was trained with it, without a config.json beside them."""
    start, saved = save_splade(tmp_path / "start", table=True), tmp_path / "saved"
    table = SparseStaticEmbedding.load(str(start), subfolder="query_0_SparseStaticEmbedding")
    documents = [Transformer(str(start), transformer_task="fill-mask"), SpladePooling()]
    router = Router.for_query_document(query_modules=[table], document_modules=documents)
    SparseEncoder(modules=[router], device="cpu").save(str(saved), create_model_card=False)
    theirs = expected(saved, QUERY)

    assert scores_of_texts(load_model(str(saved)), QUERY, TEXTS) == pytest.approx(theirs, abs=CLOSE * max(theirs))
    edit_json(saved / "router_config.json", {"structure": {"query": [], "document": ["../start"]}})
    assert_refused(saved, r"modules \['Router'\] without a transformer in the folder itself are not supported")


def test_a_long_text_is_pooled_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, long = load_model(str(save_splade(tmp_path))), [random_text(rng, 300)]
    scores = scores_of_texts(whole, QUERY, long)
    monkeypatch.setattr("bandrank.models.architectures.splade.BLOCK_ROWS", 64)

    assert scores_of_texts(whole, QUERY, long) == pytest.approx(scores, rel=1e-6)


def test_a_table_reads_each_token_of_a_query_once(tmp_path: Path) -> None:
    """Without the tokens around a text, and without the encoder."""
    model = load_model(str(save_splade(tmp_path, table=True)))
    as_served(model.scorer)
    assert isinstance(model.scorer, Splade)
    model.scorer.encoder.forward = None  # type: ignore[assignment, method-assign]

    tokens = model.tokenizer.encode("the man the man", add_special_tokens=False).ids
    found = model.scorer.encode_queries(Ragged.from_token_ids([tokens, []])).values
    weights = load_file(tmp_path / "query_0_SparseStaticEmbedding" / "model.safetensors")["weight"]
    wanted = torch.zeros(2, len(weights))
    wanted[0, tokens] = weights[tokens]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}, "compared by cosine are not supported"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "most_terms must be at least 1, got 0"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "gives no logits is not supported"),
        ("1_SpladePooling/config.json", {"pooling_strategy": "median"}, "a SpladePooling with median and relu is not"),
        ("1_SpladePooling/config.json", {"activation_function": "tanh"}, "a SpladePooling with max and tanh is not"),
    ],
)
def test_other_settings_are_refused(file: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_splade(tmp_path)
    if not (folder / file).exists():
        write_json(folder / file, {})
    edit_json(folder / file, settings)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda router: router["structure"].pop("query"), "a Router with {'document': "),
        (lambda router: router["structure"].update(query=router["structure"]["document"]), "a Router with {'query': "),
        (lambda router: router["parameters"].update(route_mappings={"('query', 'text')": "document"}), "a Router with"),
        (lambda router: router["types"].update({"": "mine.MLMTransformer"}), "modules of code of its own"),
        (lambda router: router["types"].pop(""), "a Router with {'query': .*None"),
        (lambda router: router.pop("types"), "a Router with {'query': .*None"),
        (lambda router: router.pop("structure"), "a Router with {} is not supported"),
    ],
)
def test_another_router_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    folder = save_splade(tmp_path, table=True)
    router = json.loads((folder / "router_config.json").read_text())
    change(router)
    (folder / "router_config.json").write_text(json.dumps(router))
    assert_refused(folder, message)


def test_a_table_of_other_tokens_is_refused(tmp_path: Path) -> None:
    folder = save_splade(tmp_path, table=True)
    queries = folder / "query_0_SparseStaticEmbedding"
    save_file({"weight": torch.ones(7)}, queries / "model.safetensors")
    assert_refused(folder, "of another shape: .'query_weights'")
    edit_json(queries / "tokenizer.json", {"normalizer": None})
    assert_refused(folder, "a tokenizer for queries .* is not that of documents")
    edit_json(queries / "config.json", {"path": "idf.json"})
    assert_refused(folder, "weights of queries in idf.json are not supported")


def test_a_model_that_predicts_no_words_is_refused(tmp_path: Path) -> None:
    """One of a family without such a head, and one that was saved without it."""
    folder = save_splade(tmp_path, model=tiny_hf_cross_encoder())
    assert_refused(folder, r"no tensor 'cls\.predictions\.transform\.dense\.weight'")
    write_modules(folder, {"": TRANSFORMER, "1_Pooling": "models.Pooling", "2": POOLING})
    assert_refused(folder, "are not supported")
