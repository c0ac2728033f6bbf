"""Bi-encoders with a model of its own for queries, behind a Router, against `sentence-transformers`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from models.test_golden_modules import CLOSE, QUERIES, TEXTS, expected, found
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Router,
    StaticEmbedding,
    Transformer,
)
from support.app import client_of
from support.bert_likes import KNOWN, save_fast_tokenizer, tiny, word_piece_tokenizer
from support.models import HIDDEN_SIZE, as_served, edit_json, randomise, tiny_bi_encoder, tiny_static_bi_encoder
from support.redis_server import RedisServer
from support.refusals import assert_refused
from support.tokenizer import TOKENIZER_FILE
from torch import nn

from bandrank.engine.cache.keys import fingerprint
from bandrank.models import checkpoint
from bandrank.models.architectures import BiEncoder
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.readings import read_pair
from bandrank.models.windowed import windowed
from bandrank.settings import Settings
from bandrank_training.errors import BadRecipe
from bandrank_training.models import build, tokenizer_file
from bandrank_training.recipe import ModelRecipe

SMALL, LARGE = "DistilBERT", "BAAI/bge-reranker-base"  # with other tokens
SIZE = 8  # of the vectors
PROMPTS = {"query": "who is ", "document": "the man: "}


def encoder(folder: Path, name: str, *, max_tokens: int = 24, size: int = SIZE) -> list[nn.Module]:
    """A random encoder, a pooling, and a dense layer."""
    tiny(name).base_model.save_pretrained(folder)
    save_fast_tokenizer(folder, KNOWN[name].tokenizer())
    dense = Dense(HIDDEN_SIZE, size, activation_function=nn.Identity())
    randomise(dense, seed=len(name))
    return [Transformer(str(folder), max_seq_length=max_tokens), Pooling(HIDDEN_SIZE, pooling_mode="cls"), dense]


def table() -> list[nn.Module]:
    """A random table of vectors."""
    tokenizer = word_piece_tokenizer()
    generator = torch.Generator().manual_seed(3)
    return [StaticEmbedding(tokenizer, torch.randn(tokenizer.get_vocab_size(), SIZE, generator=generator))]


def saved(folder: Path, queries: list[nn.Module], documents: list[nn.Module], **more: Any) -> Path:
    """Writes both with a Router before a Normalize module, as MongoDB/mdbr-leaf-ir-asym has it. more: arguments."""
    router = Router.for_query_document(queries, documents)  # type: ignore[arg-type]  # the library's own modules
    model = SentenceTransformer(modules=[router, Normalize()], device="cpu", prompts=PROMPTS, **more)
    model.save(str(folder), create_model_card=False)
    return folder


def small_and_large(folder: Path, **more: Any) -> Path:
    """Writes a bi-encoder that reads 11 tokens of a query by a small model, and 24 of a text by a large one."""
    queries, documents = encoder(folder / "small", SMALL, max_tokens=11), encoder(folder / "large", LARGE)
    return saved(folder / "saved", queries, documents, **more)


def assert_alike(folder: Path) -> LoadedModel:
    """Checks that our similarities are the library's, also as served, in int8 too; returns the model."""
    model, similarities = load_model(str(folder)), expected(folder)
    torch.testing.assert_close(found(model), similarities, rtol=0, atol=CLOSE)
    assert similarities.std() > 100 * CLOSE
    as_served(model.scorer)
    torch.testing.assert_close(found(model), similarities, rtol=0, atol=CLOSE)
    return model


def test_an_encoder_for_queries_of_another_family(tmp_path: Path) -> None:
    """It has other tokens and another length, and prompts go to both."""
    model = assert_alike(small_and_large(tmp_path))
    scorer = model.scorer
    assert isinstance(scorer, BiEncoder)
    assert scorer.encodes_queries_apart
    assert (scorer.query_template.max_tokens, scorer.candidate_template.max_tokens) == (11, 24)
    with pytest.raises(ValueError, match="one encoder for queries and one for candidates"):
        windowed(scorer, 4)

    texts = model.texts()
    asked, read = read_pair(texts, QUERIES[0], TEXTS[0])
    assert [token.id for token in asked.tokens] == texts.query(QUERIES[0])[0].tolist()
    assert [asked.tokens[0].piece, read.tokens[0].piece] == ["[CLS]", "<s>"]
    facts = scorer.facts(texts.of_queries.text_of, texts.text_of)
    assert facts["reads"] == "[CLS] who is QUERY [SEP] and <s> the man: CANDIDATE </s>"


@pytest.mark.parametrize("of_queries", [True, False])
def test_static_embeddings_on_one_side(of_queries: bool, tmp_path: Path) -> None:
    other = encoder(tmp_path / "other", SMALL)
    queries, documents = (table(), other) if of_queries else (other, table())
    scorer = assert_alike(saved(tmp_path / "saved", queries, documents)).scorer
    of_all = 20 * scorer.sides[-1].row_cost
    assert scorer.query_rows(20) * scorer.row_cost == pytest.approx(of_all)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    """Both encoders compute in them, and both dense layers in float32."""
    folder = small_and_large(tmp_path)
    model, similarities = load_model(str(folder)), expected(folder)
    scorer = as_served(model.scorer, dtype=dtype)
    torch.testing.assert_close(found(model), similarities, rtol=0, atol=0.05)
    assert not torch.equal(found(model), similarities)
    for side in scorer.sides:
        assert side.get_submodule("dense.0.linear").weight.dtype == torch.float32
    weights = {type(side.encoder.layer(0).qkv) for side in scorer.sides}
    assert len(weights) == 1


def test_vectors_may_be_cut(tmp_path: Path) -> None:
    folder = small_and_large(tmp_path, truncate_dim=5)
    assert assert_alike(folder).scorer.representation_size == 5
    assert load_model(str(folder), size=3).scorer.sides[-1].representation_size == 3


def test_another_encoder_for_queries_keeps_the_cache(tmp_path: Path) -> None:
    """What is stored of candidates depends on the large encoder and its tokenizer alone."""
    documents = encoder(tmp_path / "large", LARGE)
    first = saved(tmp_path / "first", encoder(tmp_path / "small", SMALL), documents)
    second = saved(tmp_path / "second", table(), documents)
    third = saved(tmp_path / "third", table(), encoder(tmp_path / "other", SMALL))
    models = [load_model(str(folder)) for folder in (first, second, third)]
    found = [fingerprint(model.scorer, model.tokenizer.to_str(), "float16") for model in models]
    assert found[0] == found[1] != found[2]


async def test_a_service_of_both(server: RedisServer, tmp_path: Path) -> None:
    """Its embeddings are the library's, and a second service finds the candidates of the first one in Redis."""
    folder = small_and_large(tmp_path)
    settings = Settings(
        model=str(folder),
        device="cpu",
        dtype="float32",
        cache_dtype="float32",
        redis_url=server.url,
        redis_timeout_s=20,
    )
    theirs, similarities = SentenceTransformer(str(folder), device="cpu"), expected(folder)[0].tolist()
    vectors = {"query": theirs.encode_query(QUERIES), "document": theirs.encode_document(TEXTS)}
    for hits in (0, len(TEXTS)):
        async with client_of(settings) as client:
            body = {"query": QUERIES[0], "candidates": TEXTS, "raw_scores": True}
            answer = (await client.post("/rerank", json=body)).raise_for_status().json()
            for side, texts in (("query", QUERIES), ("document", TEXTS)):
                asked = {"input": texts, "input_type": side}
                embedded = (await client.post("/v1/embeddings", json=asked)).raise_for_status().json()["data"]
                found = torch.tensor([each["embedding"] for each in embedded])
                torch.testing.assert_close(found, torch.from_numpy(vectors[side]), rtol=0, atol=CLOSE)
        scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
        assert [scores[index] for index in range(len(TEXTS))] == pytest.approx(similarities, abs=CLOSE)
        assert answer["meta"]["stages"][0]["cache_hits"] == hits


def test_a_checkpoint_of_ours_has_one_tokenizer(tmp_path: Path) -> None:
    """With which it may hold two encoders."""
    scorer = tiny_bi_encoder(of_queries=tiny_static_bi_encoder().config)
    checkpoint.save(scorer, tmp_path / "ours", tokenizer=TOKENIZER_FILE)
    assert load_model(str(tmp_path / "ours")).scorer.config == scorer.config

    folder = small_and_large(tmp_path)
    with pytest.raises(BadRecipe, match="whose queries have their own tokenizer cannot be trained"):
        build(ModelRecipe(start=str(folder)), seed=0)
    with pytest.raises(BadCheckpoint, match="queries have their own tokenizer"):
        tokenizer_file(load_model(str(folder)))


def test_other_routers_are_refused(tmp_path: Path) -> None:
    folder = small_and_large(tmp_path / "same")
    sizes = encoder(tmp_path / "small", SMALL, size=4), encoder(tmp_path / "large", LARGE)
    assert_refused(saved(tmp_path / "sizes", *sizes), r"vectors of queries \(4 numbers, cosine\) and of candidates")
    router = folder / "router_config.json"
    edit_json(router, {"parameters": {"route_mappings": {"('query', 'text')": "document"}}})
    assert_refused(folder, "a Router with .* the route_mappings {.*'document'} is not supported")
    edit_json(router, {"parameters": {}})
    edit_json(folder / "query_0_Transformer" / "sentence_bert_config.json", {"model_args": {"num_labels": 2}})
    assert_refused(folder, "a transformer that is loaded with {'model_args'")
    edit_json(router, {"structure": {"document": ["document_0_Transformer", "document_1_Pooling"]}})
    assert_refused(folder, r"a Router with the routes \['document'\]")
    edit_json(router, {"structure": {}})
    assert_refused(folder, r"modules \['Router', 'Normalize'\] without a transformer")
