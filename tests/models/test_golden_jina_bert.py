"""JinaBERT against its formulas on padded batches and full matrices, from texts on: cross-encoders, bi-encoders and
ColBERT, under the names of its authors.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bert_likes import word_piece_tokenizer
from support.dense_bert import allowed
from support.jina_bert import KINDS, POSITIONS, Kind, Weights, of_first, padded, random_weights, save, scores, states
from support.models import as_served, change_weights, edit_json, random_text, score_batch, write_json, write_modules
from support.text_scores import ids_of, scores_of_texts
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize

from bandrank.models import checkpoint, hf
from bandrank.models.architectures import ColBERT, CrossEncoder
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.layers.alibi import Alibi, slopes
from bandrank.models.layers.patterns import longformer, sparse
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.windowed import windowed
from bandrank_kernels.windowed_attention import AttentionPattern

CLOSE = 1e-5  # float32 in another order of summation; scores are of the order of 1
every_kind = pytest.mark.parametrize("name", KINDS)
of_both_codes = pytest.mark.parametrize("name", ["jina-embeddings-v2-base-en", "jina-embeddings-v2-base-code"])

rng = random.Random(0)
QUERIES = ["who is the man", "", "Thé man's time? ☂"]
TEXTS = [
    ["the man", "", "she was over there; who?", random_text(rng, 40)],
    ["what  about\tit", "ñandú ☂ of the man"],
    [random_text(rng, 30)],
]


def pairs_of(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and types of all pairs, by the template of the folder's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pairs = [tokenizer.encode(query, text) for query, texts in zip(QUERIES, TEXTS, strict=True) for text in texts]
    return [pair.ids for pair in pairs], [pair.type_ids for pair in pairs]


def texts_of(model: LoadedModel) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Token ids of all queries and candidates, as the service makes them."""
    pairs = [ids_of(model, query, texts) for query, texts in zip(QUERIES, TEXTS, strict=True)]
    return [query for query, _ in pairs], [texts for _, texts in pairs]


def scores_of(model: LoadedModel, *, every_row: bool = False) -> list[float]:
    """Ours, of all pairs in one batch."""
    batch, scorer = score_batch(*texts_of(model)), model.scorer
    with torch.inference_mode():
        if every_row:
            assert isinstance(scorer, CrossEncoder)
            return scorer.score_packed(batch, partial(scorer.launch, cls_only=False)).tolist()  # type: ignore[no-any-return]
        return scorer(batch).tolist()  # type: ignore[no-any-return]


def with_pattern(model: LoadedModel, pattern: AttentionPattern) -> LoadedModel:
    """The cross-encoder with its weights under another pattern."""
    scorer = CrossEncoder(replace(model.scorer.config, pattern=pattern))
    scorer.load_state_dict(model.scorer.state_dict())
    return replace(model, scorer=scorer.eval())


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [1 / 256]),
        (2, [1 / 16, 1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
    ],
)
def test_slopes(num_heads: int, expected: list[float]) -> None:
    """Those of the paper for eight heads; six have those of four, and two of eight."""
    assert slopes(num_heads) == pytest.approx(expected, rel=1e-12)


@every_kind
def test_in_company_and_alone(name: str, tmp_path: Path) -> None:
    """Several queries, empty texts, unknown characters; with the last layer for every row and for [CLS] alone; as it
    is served; and saved and loaded again.
    """
    weights = random_weights(KINDS[name])
    folder = save(tmp_path / "theirs", KINDS[name], weights)
    model = load_model(str(folder))
    expected = scores(KINDS[name], weights, *pairs_of(folder))
    alone = [
        scores_of_texts(model, query, [text])[0] for query, texts in zip(QUERIES, TEXTS, strict=True) for text in texts
    ]
    checkpoint.save(model.scorer, tmp_path / "ours", tokenizer=folder / "tokenizer.json")

    assert torch.tensor(expected).std() > 1000 * CLOSE
    assert scores_of(model) == pytest.approx(expected, abs=CLOSE)
    assert scores_of(model, every_row=True) == pytest.approx(expected, abs=CLOSE)
    assert alone == pytest.approx(expected, abs=CLOSE)
    assert scores_of(load_model(str(tmp_path / "ours"))) == pytest.approx(expected, abs=CLOSE)
    as_served(model.scorer)
    assert scores_of(model) == pytest.approx(expected, abs=CLOSE)


@every_kind
def test_the_ids_of_a_pair(name: str, tmp_path: Path) -> None:
    """Are those of the tokenizer's own template; its types too, of which RoBERTa's tokenizers have one alone."""
    folder = save(tmp_path, KINDS[name], random_weights(KINDS[name]))
    model = load_model(str(folder))
    ids, types = pairs_of(folder)
    queries, candidates = texts_of(model)
    found = [(query, each) for query, texts in zip(queries, candidates, strict=True) for each in texts]
    second = int(model.scorer.config.token_types)

    assert [[model.scorer.config.cls_id, *query, *each] for query, each in found] == ids
    assert [[0] * (1 + len(query)) + [second] * len(each) for query, each in found] == types
    assert second == (KINDS[name].tokenizer is word_piece_tokenizer)


@of_both_codes
@pytest.mark.parametrize("pattern", [sparse(4), sparse(None), longformer(4)], ids=lambda each: each.summary)
def test_a_pattern_is_a_dense_mask(name: str, pattern: AttentionPattern, tmp_path: Path) -> None:
    """A token of a candidate is as far from one of the query as in the sequence of both."""
    kind, weights = KINDS[name], random_weights(KINDS[name])
    model = with_pattern(load_model(str(save(tmp_path, kind, weights))), pattern)
    expected = []
    for query, texts in zip(*texts_of(model), strict=True):
        for text in texts:
            ids = torch.tensor([[model.scorer.config.cls_id, *query, *text]])
            types = torch.tensor([[0] * (1 + len(query)) + [int(model.scorer.config.token_types)] * len(text)])
            seen = allowed(query, text, pattern)[None]
            expected += of_first(weights, states(kind, weights, ids, types, seen))

    assert scores_of(model) == pytest.approx(expected, abs=CLOSE)
    assert scores_of(model, every_row=True) == pytest.approx(expected, abs=CLOSE)


def test_a_windowed_start(tmp_path: Path) -> None:
    """As `bandrank export --window` makes it, of a bi-encoder too."""
    kind = KINDS["jina-embeddings-v2-base-en"]
    model = load_model(str(save(tmp_path / "cross", kind, random_weights(kind))))
    bi_encoder = load_model(str(save_bi_encoder(tmp_path / "bi", kind, random_weights(kind))))

    assert scores_of(with_pattern(model, sparse(4))) == scores_of(replace(model, scorer=windowed(model.scorer, 4)))
    assert windowed(bi_encoder.scorer, 4).config.encoder == model.scorer.config.encoder


def test_the_longest_pair(tmp_path: Path) -> None:
    """Has as many tokens as config.json says, and a longer text is scored by its best passage."""
    kind = KINDS["jina-reranker-v1-tiny-en"]
    weights = random_weights(kind)
    model = load_model(str(save(tmp_path, kind, weights)))
    query, (text,) = ids_of(model, "who", [random_text(random.Random(1), 900)])
    fitting = [*text[: POSITIONS - 2 - len(query)], text[-1]]
    whole = [model.scorer.config.cls_id, *query, *fitting]
    with torch.inference_mode():
        found = model.scorer(score_batch([query], [[fitting, text]])).tolist()

    assert len(whole) == POSITIONS == model.scorer.config.max_tokens
    assert found[0] == pytest.approx(scores(kind, weights, [whole], [[0] * POSITIONS])[0], abs=CLOSE)
    assert found[1] >= found[0] - CLOSE


def save_bi_encoder(folder: Path, kind: Kind, weights: Weights) -> Path:
    """A folder of sentence-transformers with the mean of all tokens, as the published ones have it."""
    save(folder, kind, weights, prefix="")
    write_modules(folder, {"": "models.Transformer", "1_Pooling": "models.Pooling"})
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})
    settings = {"max_seq_length": 8192, "do_lower_case": False, "model_args": {"trust_remote_code": True}}
    write_json(folder / "sentence_bert_config.json", settings)
    return folder


@of_both_codes
def test_a_bi_encoder(name: str, tmp_path: Path) -> None:
    """The cosine of means over all tokens."""
    kind, weights = KINDS[name], random_weights(KINDS[name])
    model = load_model(str(save_bi_encoder(tmp_path, kind, weights)))

    def vectors(texts: Sequence[list[int]]) -> Tensor:
        ids, real = padded(texts, 1)
        rows = states(kind, weights, ids, torch.zeros_like(ids), real[:, None])
        return normalize((rows * real[..., None]).sum(1) / real.sum(1, keepdim=True), dim=-1)

    queries, candidates = texts_of(model)
    expected = [vectors(texts) @ query for query, texts in zip(vectors(queries), candidates, strict=True)]

    assert torch.cat(expected).std() > 1000 * CLOSE
    assert scores_of(model) == pytest.approx(torch.cat(expected).tolist(), abs=CLOSE)


@of_both_codes
@pytest.mark.parametrize("attend_to_masks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_colbert(name: str, attend_to_masks: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """Queries are filled up with [MASK], which other rows attend to or not; as Stanford's library saves it."""
    kind = replace(KINDS[name], tokenizer=Kind().tokenizer)  # which has the markers
    weights = random_weights(kind)
    weights["linear.weight"] = torch.randn(16, 48, generator=torch.Generator().manual_seed(1))
    save(tmp_path, kind, weights)
    edit_json(tmp_path / "config.json", {"architectures": ["HF_ColBERT"]})
    metadata = {"query_maxlen": 32, "doc_maxlen": 180, "attend_to_mask_tokens": attend_to_masks}
    write_json(tmp_path / "artifact.metadata", metadata | {"mask_punctuation": False})
    model = load_model(str(tmp_path))
    assert isinstance(model.scorer, ColBERT)
    queries, candidates = texts_of(model)

    def vectors(texts: Sequence[list[int]], seen: Tensor | None = None) -> list[Tensor]:
        ids, real = padded(texts, 1)
        rows = states(kind, weights, ids, torch.zeros_like(ids), (real if seen is None else seen)[:, None])
        rows = normalize(rows @ weights["linear.weight"].T, dim=-1)
        return [each[kept] for each, kept in zip(rows, real, strict=True)]

    filled = [query + [model.scorer.config.mask_id] * (32 - len(query)) for query in queries]
    seen = torch.arange(32) < torch.tensor([[32 if attend_to_masks else len(query)] for query in queries])
    expected = [
        float((query @ text.T).amax(1).sum())
        for query, texts in zip(vectors(filled, seen), candidates, strict=True)
        for text in vectors(texts)
    ]
    as_served(model.scorer, dtype)

    spread = float(torch.tensor(expected).std())
    assert scores_of(model) == pytest.approx(expected, abs=10 * CLOSE if dtype is torch.float32 else 0.2 * spread)
    assert spread > 0.5


def test_the_biases_are_not_rounded_with_the_weights() -> None:
    """At a distance of hundreds a slope in bfloat16 would be off by more than a logit's own rounding."""
    biases = Alibi(12).to(torch.bfloat16).biases(200, torch.device("cpu"))

    assert biases.dtype == torch.float32
    assert biases[0].tolist() == pytest.approx([-200 * slope for slope in slopes(12)], rel=1e-6)
    assert torch.equal(biases, biases.flip(0))


@pytest.mark.parametrize(
    "other",
    [
        {"position_embedding_type": "absolute"},
        {"position_embedding_type": None},
        {"feed_forward_type": "original"},
        {"is_decoder": True},
    ],
)
def test_what_is_not_computed_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    """Rather than left out, which would give other scores; the authors' class takes what is left out to be plain."""
    folder = save(tmp_path, KINDS["jina-reranker-v1-tiny-en"], random_weights(KINDS["jina-reranker-v1-tiny-en"]))
    (setting, value), *_ = other.items()
    edit_json(folder / "config.json", other, remove=() if value else (setting,))

    with pytest.raises(BadCheckpoint, match=f"a JinaBERT with .*{setting}.* is not supported; supported are"):
        hf.load(folder)


def test_without_its_authors_class_it_is_no_bert(tmp_path: Path) -> None:
    """Nothing else says which code computes it."""
    folder = save(tmp_path, KINDS["jina-reranker-v1-tiny-en"], random_weights(KINDS["jina-reranker-v1-tiny-en"]))
    edit_json(folder / "config.json", {}, remove=("auto_map",))

    with pytest.raises(BadCheckpoint, match="model_type 'bert' with alibi positions is not supported"):
        hf.load(folder)


@pytest.mark.parametrize(
    "name", ["embeddings.token_type_embeddings.weight", "encoder.layer.1.mlp.gated_layers.weight", "pooler.dense.bias"]
)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    """In the words of the folder."""
    folder = save(tmp_path, KINDS["jina-reranker-v1-tiny-en"], random_weights(KINDS["jina-reranker-v1-tiny-en"]))
    change_weights(folder, lambda weights: {n: t for n, t in weights.items() if n != f"bert.{name}"})

    with pytest.raises(BadCheckpoint, match=f"the weights have no tensor '{name}'"):
        hf.load(folder)
