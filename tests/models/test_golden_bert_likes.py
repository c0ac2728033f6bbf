"""RoBERTa, XLM-RoBERTa with learnt and with rotary positions, ELECTRA, MPNet, DistilBERT, NomicBERT and GTE against
`transformers`, and JinaBERT against its formulas, from texts on: tokenizer, template, encoder and head.
"""

import random
from functools import partial
from pathlib import Path

import pytest
import torch
from support.bert_likes import ALL, save, tiny
from support.dense_bert import allowed
from support.models import as_served, edit_json, random_text, score_batch
from support.text_scores import ids_of
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DistilBertForSequenceClassification, PreTrainedModel

from bandrank.models import checkpoint
from bandrank.models.architectures import CrossEncoder
from bandrank.models.layers.patterns import sparse
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.windowed import windowed

CLOSE = 1e-5  # float32 in another order of summation; scores are of the order of 1
every_model = pytest.mark.parametrize("name", ALL)

rng = random.Random(0)
QUERIES = ["who is the man", "", "Thé man's time? ☂"]
TEXTS = [
    ["the man", "", "she was over there; who?", random_text(rng, 40)],
    ["what  about\tit", "ñandú ☂ of the man"],
    [random_text(rng, 80)],
]


def expected_scores(model: PreTrainedModel, folder: Path) -> list[float]:
    """Returns the library's score of each pair, as the folder's tokenizer encodes pairs."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    scores = []
    with torch.inference_mode():
        for query, texts in zip(QUERIES, TEXTS, strict=True):
            for text in texts:
                pair = tokenizer.encode(query, text)
                scores.append(score_of(model, pair.ids, pair.type_ids))
    return scores


def score_of(model: PreTrainedModel, ids: list[int], types: list[int], seen: Tensor | None = None) -> float:
    """The library's score of a pair; types are left out for a model that has none.

    seen: (length, length) bool, whether a token attends to another; None for all of them.
    """
    more = {"token_type_ids": torch.tensor([types])} if getattr(model.config, "type_vocab_size", 1) > 1 else {}
    if seen is not None:
        lowest = torch.finfo(torch.float32).min
        more["attention_mask"] = torch.zeros(seen.shape).masked_fill(~seen, lowest)[None, None]
    return float(model(input_ids=torch.tensor([ids]), **more).logits)


def types_of(model: LoadedModel, query: list[int], candidate: list[int]) -> list[int]:
    """Token types of [CLS], query and candidate."""
    return [0] * (1 + len(query)) + [int(model.scorer.config.token_types)] * len(candidate)


def scores_of(model: LoadedModel, *, every_row: bool = False) -> list[float]:
    """Returns our scores of all pairs in one batch. every_row: whether the last layer computes more than [CLS]."""
    pairs = [ids_of(model, query, texts) for query, texts in zip(QUERIES, TEXTS, strict=True)]
    batch = score_batch([query for query, _ in pairs], [texts for _, texts in pairs])
    scorer = model.scorer
    assert isinstance(scorer, CrossEncoder)
    with torch.inference_mode():
        if every_row:
            return scorer.score_packed(batch, partial(scorer.launch, cls_only=False)).tolist()  # type: ignore[no-any-return]
        return scorer(batch).tolist()  # type: ignore[no-any-return]


@every_model
def test_scores_are_those_of_the_library(name: str, tmp_path: Path) -> None:
    """Scores are the library's whether the last layer computes every row or [CLS] alone."""
    model = tiny(name)
    folder = save(tmp_path, name, model)
    loaded = load_model(str(folder))
    expected = expected_scores(model, folder)
    alone = []
    with torch.inference_mode():
        for query, texts in zip(QUERIES, TEXTS, strict=True):
            for text in texts:
                ids, candidates = ids_of(loaded, query, [text])
                alone.append(loaded.scorer(score_batch([ids], [candidates])).item())

    assert scores_of(loaded) == pytest.approx(expected, abs=CLOSE)
    assert scores_of(loaded, every_row=True) == pytest.approx(expected, abs=CLOSE)
    assert alone == pytest.approx(expected, abs=CLOSE)
    assert torch.tensor(expected).std() > 1000 * CLOSE


def test_a_number_of_heads_that_the_folder_leaves_to_its_family(tmp_path: Path) -> None:
    """ELECTRA's default is 4, where BERT's is 12."""
    name = "cross-encoder/ms-marco-electra-base"
    model = tiny(name, hidden_size=48, embedding_size=48)
    folder = save(tmp_path, name, model)
    edit_json(folder / "config.json", {}, remove=("num_attention_heads",))

    assert scores_of(load_model(str(folder))) == pytest.approx(expected_scores(model, folder), abs=CLOSE)


def test_the_epsilon_of_distilbert_is_fixed(tmp_path: Path) -> None:
    """The library reads none from its config.json."""
    folder = save(tmp_path, "DistilBERT")
    edit_json(folder / "config.json", {"layer_norm_eps": 0.1})
    model = DistilBertForSequenceClassification.from_pretrained(folder)

    assert scores_of(load_model(str(folder))) == pytest.approx(expected_scores(model, folder), abs=CLOSE)


@every_model
def test_the_ids_of_a_pair(name: str, tmp_path: Path) -> None:
    """The ids are those of the tokenizer's own template, with special tokens and separators between the texts."""
    folder = save(tmp_path, name)
    loaded = load_model(str(folder))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for query, texts in zip(QUERIES, TEXTS, strict=True):
        ids, candidates = ids_of(loaded, query, texts)
        ours = [[loaded.scorer.config.cls_id, *ids, *candidate] for candidate in candidates]
        pairs = [tokenizer.encode(query, text) for text in texts]
        assert ours == [pair.ids for pair in pairs]
        if ALL[name].settings.get("type_vocab_size", 1) > 1:
            types = [types_of(loaded, ids, candidate) for candidate in candidates]
            assert types == [pair.type_ids for pair in pairs]


@every_model
def test_the_longest_pair(name: str, tmp_path: Path) -> None:
    """The longest pair has every position of the table, and a longer text is scored by its best passage."""
    model = tiny(name)
    loaded = load_model(str(save(tmp_path, name, model)))
    assert loaded.scorer.config.max_tokens == ALL[name].positions
    (ids, (candidate,)) = ids_of(loaded, "who", [random_text(random.Random(1), 9000)])
    fitting = [*candidate[: ALL[name].positions - 2 - len(ids)], candidate[-1]]
    whole = [loaded.scorer.config.cls_id, *ids, *fitting]
    with torch.inference_mode():
        expected = score_of(model, whole, types_of(loaded, ids, fitting))
        scores = loaded.scorer(score_batch([ids], [[fitting, candidate]])).tolist()

    assert len(whole) == ALL[name].positions
    assert scores[0] == pytest.approx(expected, abs=CLOSE)
    assert scores[1] >= scores[0] - CLOSE


@every_model
@pytest.mark.parametrize("every_row", [False, True])
def test_a_window_is_a_dense_mask(name: str, every_row: bool, tmp_path: Path) -> None:
    """Scores under a window, saved and loaded, are the library's under a dense mask of all pairs of tokens."""
    model = tiny(name)
    folder = save(tmp_path / "model", name, model)
    full = load_model(str(folder)).scorer
    assert isinstance(full, CrossEncoder)
    checkpoint.save(windowed(full, 4), tmp_path / "saved", tokenizer=folder / "tokenizer.json")
    loaded = load_model(str(tmp_path / "saved"))
    expected = []
    for query, texts in zip(QUERIES, TEXTS, strict=True):
        ids, candidates = ids_of(loaded, query, texts)
        for candidate in candidates:
            whole = [loaded.scorer.config.cls_id, *ids, *candidate]
            types = types_of(loaded, ids, candidate)
            with torch.inference_mode():
                expected.append(score_of(model, whole, types, seen=allowed(ids, candidate, sparse(4))))

    assert scores_of(loaded, every_row=every_row) == pytest.approx(expected, abs=CLOSE)


@every_model
def test_served_scores_are_near_in_each_dtype(name: str, tmp_path: Path) -> None:
    folder = str(save(tmp_path, name))
    before = scores_of(load_model(folder))
    for dtype, close in ((torch.float32, CLOSE), (torch.bfloat16, 0.1)):  # 24 bits of a number, and 8
        served = load_model(folder)
        as_served(served.scorer, dtype)
        assert scores_of(served) == pytest.approx(before, abs=close)
    assert scores_of(served) != pytest.approx(before, abs=CLOSE)
