"""DeBERTa-v2 and -v3 against `transformers`, with every option of published models and some more."""

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.deberta import save_deberta, tiny_hf_deberta, unigram_tokenizer
from support.dense_bert import allowed, full_score
from support.dense_scorers import pair_scores
from support.models import as_served, random_ids, score_batch
from support.tokenizer import CLS_ID
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DebertaV2ForSequenceClassification

from bandrank.models import hf
from bandrank.models.architectures import CrossEncoder
from bandrank.models.layers import chunked_attention
from bandrank.models.layers.disentangled import Distances
from bandrank.models.layers.patterns import longformer, sparse
from bandrank.models.loading import load_model
from bandrank.models.texts import TextEncoder
from bandrank_kernels.windowed_attention import AttentionPattern

CLOSE = 1e-5  # float32 in another order of summation; scores are of the order of 1

# What differs from the settings of mixedbread-ai/mxbai-rerank-*-v1.
OPTIONS: dict[str, dict[str, Any]] = {
    "mxbai": {},
    "as v2": {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 2},
    "own projections": {"share_att_key": False},
    "c2p": {"pos_att_type": "c2p"},
    "p2c": {"pos_att_type": ["p2c"]},
    "c2p of its own": {"pos_att_type": ["c2p"], "share_att_key": False},
    "few buckets": {"position_buckets": 8, "max_relative_positions": 40},
    "buckets that fold back": {"max_relative_positions": 100},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 40, "pos_att_type": "c2p|p2c"},
    "no relative positions": {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
    "a tanh pooler": {"pooler_hidden_act": "tanh"},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)

Texts = tuple[list[list[int]], list[list[list[int]]]]


def ragged_texts(*lengths: list[int]) -> Texts:
    """Returns queries with candidates of these numbers of pieces."""
    rng = random.Random(0)
    queries = [random_ids(rng, num_pieces) for num_pieces in (7, 3, 1)[: len(lengths)]]
    return queries, [[random_ids(rng, num_pieces) for num_pieces in group] for group in lengths]


def expected_scores(model: DebertaV2ForSequenceClassification, texts: Texts) -> list[float]:
    """Returns the library's scores, one text at a time."""
    return pair_scores(partial(full_score, model), *texts)


def load(folder: Path) -> CrossEncoder:
    scorer = hf.load(folder)
    assert isinstance(scorer, CrossEncoder)
    return scorer


@every_option
def test_scores_are_those_of_the_library(tmp_path: Path, options: dict[str, Any]) -> None:
    """Candidates are shorter and longer than the exact buckets and the farthest distance."""
    model = tiny_hf_deberta(**options)
    scorer = load(save_deberta(tmp_path, model))
    texts = ragged_texts([0, 1, 60, 140, 290], [], [490, 5])
    expected = expected_scores(model, texts)

    with torch.inference_mode():
        together = scorer(score_batch(*texts)).tolist()
        every_row = scorer.score_packed(score_batch(*texts), partial(scorer.launch, cls_only=False)).tolist()
        alone = pair_scores(lambda query, text: scorer(score_batch([query], [[text]])).item(), *texts)

    assert together == pytest.approx(expected, abs=CLOSE)
    assert every_row == pytest.approx(expected, abs=CLOSE)
    assert alone == pytest.approx(together, abs=CLOSE)
    assert torch.tensor(expected).std() > 1000 * CLOSE


@pytest.mark.parametrize("name", ["mxbai", "as v2"])
def test_gradients_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """The table of distances has gradients too, by scores that are computed again in the backward pass."""
    model = tiny_hf_deberta(**OPTIONS[name])
    scorer = load(save_deberta(tmp_path, model))
    ((query,), (texts,)) = ragged_texts([3, 140])

    for text in texts:
        ids = torch.tensor([[CLS_ID, *query, *text]])
        types = torch.tensor([[0] * (1 + len(query)) + [1] * len(text)])
        model(input_ids=ids, token_type_ids=types).logits.sum().backward()
    scorer(score_batch([query], [texts])).sum().backward()

    parameters = dict(scorer.named_parameters())
    attention = "deberta.encoder.layer.0.attention.self"
    pairs = {
        "relative.table.weight": ["deberta.encoder.rel_embeddings.weight"],
        "embeddings.word.weight": ["deberta.embeddings.word_embeddings.weight"],
        "layers.0.qkv.weight": [f"{attention}.{part}_proj.weight" for part in ("query", "key", "value")],
    }
    if name == "as v2":
        pairs["layers.0.position_key.weight"] = [f"{attention}.pos_key_proj.weight"]
    for ours, theirs in pairs.items():
        expected = torch.cat([model.get_parameter(each).grad for each in theirs])
        torch.testing.assert_close(parameters[f"encoder.{ours}"].grad, expected, rtol=1e-4, atol=CLOSE)
        assert expected.abs().max() > 100 * CLOSE


@pytest.mark.parametrize("most", [1, 20_000])
def test_chunks_change_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """The smallest chunks have one query row each; larger ones have some sequences, or parts of one."""
    scorer = load(save_deberta(tmp_path, num_layers=1))
    texts = ragged_texts([0, 60, 61, 62], [33])
    with torch.inference_mode():
        expected = scorer(score_batch(*texts))
        monkeypatch.setattr(chunked_attention, "CHUNK_ON_CPU", most)
        found = scorer.score_packed(score_batch(*texts), partial(scorer.launch, cls_only=False))

    torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation makes."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation."""
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else (result,)
        self.size = max([self.size, *(each.numel() for each in made if isinstance(each, torch.Tensor))])
        return result


@pytest.mark.parametrize("training", [False, True])
def test_memory_is_linear_in_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    """For a text four times as long, the largest tensor is little more than four times as large; the full matrix of
    scores would be sixteen times.
    """
    monkeypatch.setattr(chunked_attention, "CHUNK_ON_CPU", 1 << 15)
    model = tiny_hf_deberta(num_layers=1, max_position_embeddings=2048, position_buckets=32)
    scorer = load(save_deberta(tmp_path, model))
    sizes = []
    for num_pieces in (150, 600):
        batch = score_batch(*ragged_texts([num_pieces]))
        with torch.set_grad_enabled(training), LargestTensor() as largest:
            scores = scorer.score_packed(batch, partial(scorer.launch, cls_only=False))
            if training:
                scores.sum().backward()
        sizes.append(largest.size)

    assert sizes[1] < 4.5 * sizes[0]
    assert sizes[1] < 600**2


def test_buckets_are_those_of_the_models() -> None:
    """With 256 buckets, distances are exact up to 128, then ever coarser, and cut at the ends of the table."""
    rows = Distances(farthest=512, buckets=256).rows(600)

    def bucket(distance: int) -> int:
        return int(rows[600 + distance]) - 256

    assert [bucket(each) for each in (0, 1, 128, 129, 300, 511)] == [0, 1, 128, 129, 207, 255]
    assert [bucket(-each) for each in (1, 128, 129, 300, 511, 600)] == [-1, -128, -129, -207, -255, -256]
    assert bucket(600) == 255  # 270, cut to the last row
    assert (rows.diff() >= 0).all()


def test_served_scores_are_those_of_the_library(tmp_path: Path) -> None:
    model = tiny_hf_deberta()
    folder = save_deberta(tmp_path, model)
    texts = ragged_texts([0, 60, 140], [9])
    expected = expected_scores(model, texts)
    with torch.inference_mode():
        exact = as_served(load(folder))(score_batch(*texts)).tolist()
        rounded = as_served(load(folder), torch.bfloat16)(score_batch(*texts)).tolist()

    assert exact == pytest.approx(expected, abs=CLOSE)
    assert rounded == pytest.approx(expected, abs=0.1)
    assert rounded != pytest.approx(expected, abs=CLOSE)


def test_texts_are_read_as_the_tokenizer_joins_them(tmp_path: Path) -> None:
    """A pair is [CLS] query [SEP] candidate [SEP], each text with its own first space, and has the library's score."""
    hf_model = tiny_hf_deberta()
    model = load_model(str(save_deberta(tmp_path, hf_model)))
    scorer = model.scorer
    assert isinstance(scorer, CrossEncoder)
    query, candidate = "Over the time of man, which ", " Would many other MEN like it? "
    encoder = TextEncoder(model.tokenizer, scorer)
    query_ids, _ = encoder.query(query)
    (candidate_ids,), _ = encoder.candidates(encoder.pieces([candidate]), query_tokens=len(query_ids))

    pair = unigram_tokenizer().encode(query, candidate)
    assert [scorer.config.cls_id, *query_ids, *candidate_ids] == pair.ids
    with torch.inference_mode():
        theirs = hf_model(torch.tensor([pair.ids])).logits.item()
        assert scorer(score_batch([query_ids], [[candidate_ids]])).item() == pytest.approx(theirs, abs=CLOSE)
    assert not scorer.token_types


@pytest.mark.parametrize("pattern", [sparse(4), sparse(None), longformer(16), longformer(500)], ids=str)
def test_every_pattern_is_the_library_under_its_mask(tmp_path: Path, pattern: AttentionPattern) -> None:
    """Windows, shared queries and a last layer for [CLS] alone keep the distances of the whole text."""
    model = tiny_hf_deberta()
    full = load(save_deberta(tmp_path, model))
    scorer = CrossEncoder(replace(full.config, pattern=pattern)).eval()
    scorer.load_state_dict(full.state_dict())
    texts = ragged_texts([0, 60, 140], [], [290, 5])

    def masked_score(query: list[int], text: list[int]) -> float:
        embedded = model.deberta.embeddings(torch.tensor([[CLS_ID, *query, *text]]))
        states = model.deberta.encoder(embedded, allowed(query, text, pattern)[None]).last_hidden_state
        return float(model.classifier(model.pooler(states)))

    with torch.inference_mode():
        expected = pair_scores(masked_score, *texts)
        found = scorer(score_batch(*texts)).tolist()
        every_row = scorer.score_packed(score_batch(*texts), partial(scorer.launch, cls_only=False)).tolist()

    assert found == pytest.approx(expected, abs=CLOSE)
    assert every_row == pytest.approx(expected, abs=CLOSE)
