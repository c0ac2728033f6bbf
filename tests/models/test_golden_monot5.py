"""monoT5 against `transformers`, the words of each model, and what is refused."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import as_served, change_weights, write_json
from support.refusals import assert_refused
from support.t5 import GATED, KINDS, save_t5, t5_tokenizer, tiny_t5
from support.text_scores import ids_of, scores_of_texts
from torch.nn.functional import logsigmoid
from transformers import (
    AutoModelForSeq2SeqLM,
    MT5ForConditionalGeneration,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
)
from transformers.convert_slow_tokenizer import import_protobuf

from bandrank.models import checkpoint
from bandrank.models.hf.files import load_tokenizer
from bandrank.models.layers.passages import passage_bounds
from bandrank.models.loading import load_model

CLOSE = 1e-5  # of log probabilities
ENCODER, T5 = KINDS["t5"], (T5ForConditionalGeneration, KINDS["t5"][1])
MT5 = (MT5ForConditionalGeneration, KINDS["mt5"][1])
NAME, TRUE_FALSE, YES_NO = "monot5-base-msmarco", ("▁true", "▁false"), ("▁yes", "▁no")
QUERY, TEXTS = "where do bees live?", ["in hives.", "", "bees and  honey " * 40, "ñandú: x ", "?", "the sun is sweet"]
WORDS = "Query: Document: Relevant:"


def own_output(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with an output matrix that is not the embeddings, as in T5 1.1."""
    return weights | {"lm_head.weight": weights["shared.weight"].flip(0) * 0.3}


def their_scores(folder: Path, texts: list[list[int]], answers: tuple[str, str]) -> list[float]:
    """pygaggle's, of token ids in one padded batch: the log probability of the first of the two answers."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), t5_tokenizer()
    start = torch.full((len(texts), 1), model.config.decoder_start_token_id)
    logits = model(**tokenizer.pad({"input_ids": texts}, return_tensors="pt"), decoder_input_ids=start).logits[:, 0]
    return logits[:, tokenizer.convert_tokens_to_ids([*answers])].log_softmax(-1)[:, 0].tolist()  # type: ignore[no-any-return]


def log_probabilities(scores: list[float]) -> list[float]:
    return logsigmoid(torch.tensor(scores)).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", [dict, own_output])
@pytest.mark.parametrize(
    ("model", "more", "answers"),
    [
        (T5, {"num_decoder_layers": 2}, TRUE_FALSE),
        (T5, GATED | {"decoder_start_token_id": 5}, TRUE_FALSE),
        (MT5, {"num_heads": 5, "scale_decoder_outputs": True}, YES_NO),
    ],
)
@torch.inference_mode()
def test_scores_are_those_of_the_library(
    model: Any, more: dict[str, Any], answers: tuple[str, str], change: Any, tmp_path: Path
) -> None:
    """Ours in company, alone, from a checkpoint of ours, as served, and nearly in lower precision."""
    folder = save_t5(tmp_path / NAME, tiny_t5(*model, **more))
    change_weights(folder, change)
    prompts = [f"Query: {QUERY} Document: {text} Relevant:" for text in TEXTS]
    theirs = their_scores(folder, t5_tokenizer()(prompts)["input_ids"], answers)
    ours = load_model(str(folder))
    exact = scores_of_texts(ours, QUERY, TEXTS)
    checkpoint.save(ours.scorer, tmp_path / "ours", tokenizer=folder / "tokenizer.json")

    assert log_probabilities(exact) == pytest.approx(theirs, abs=CLOSE)
    assert scores_of_texts(load_model(str(tmp_path / "ours")), QUERY, TEXTS) == pytest.approx(exact, abs=CLOSE)
    assert [scores_of_texts(ours, QUERY, [text])[0] for text in TEXTS] == pytest.approx(exact, abs=CLOSE)
    spread = max(exact) - min(exact)
    for dtype, close in ((torch.float32, CLOSE), (torch.bfloat16, 0.1 * spread), (torch.int8, 0.2 * spread)):
        served = load_model(str(folder))
        as_served(served.scorer, dtype)
        assert scores_of_texts(served, QUERY, TEXTS) == pytest.approx(exact, abs=close)
    assert spread > 1000 * CLOSE


@torch.inference_mode()
def test_a_long_candidate_is_scored_by_its_best_passage(tmp_path: Path) -> None:
    """Each is asked with the query and all words of the prompt, and costs its rows."""
    folder, text = save_t5(tmp_path / NAME, tiny_t5(*T5)), "bees honey is sweet the sun home way find " * 90 + "by"
    model = load_model(str(folder))
    query, (ids,) = ids_of(model, QUERY, [text])
    bounds = passage_bounds(len(ids), 512 - len(query), closing=3)
    passages = [query + ids[begin:end] + (ids[-3:] if end < len(ids) else []) for begin, end in bounds]
    assert t5_tokenizer().convert_ids_to_tokens(ids[-3:]) == ["▁Relevant", ":", "</s>"]
    assert len(passages[0]) == 512

    ours = log_probabilities(scores_of_texts(model, QUERY, [text]))

    assert ours == pytest.approx([max(their_scores(folder, passages, TRUE_FALSE))], abs=CLOSE)
    assert model.scorer.rows_of(len(query), [len(ids)]) == [sum(map(len, passages))]


@pytest.mark.parametrize(
    ("name", "model", "asked"),
    [
        ("InRanker-base", T5, (WORDS, *TRUE_FALSE)),
        ("split5", T5, (WORDS, *TRUE_FALSE)),
        ("mt5-base-mmarco-v2", MT5, (WORDS, *YES_NO)),
        ("mt5-3B-mmarco-en-pt", MT5, (WORDS, "▁true", "▁")),
        ("ptt5-base-pt-msmarco-10k-v2", T5, (WORDS, "▁sim", "▁não")),
        ("monoptt5-base", T5, ("Pergunta: Documento: Relevante:", "▁Sim", "▁Não")),
    ],
)
def test_the_name_tells_the_words_of_the_prompt(
    name: str, model: Any, asked: tuple[str, ...], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Those of the model's authors; a warning if nothing tells them."""
    folder = save_t5(tmp_path / name, tiny_t5(*model, **GATED))
    change_weights(folder, own_output)
    with caplog.at_level(logging.WARNING, logger="bandrank"):
        scorer = load_model(str(folder)).scorer
    matrix = own_output(tiny_t5(*model, **GATED).state_dict())["lm_head.weight"]
    yes, no = matrix[t5_tokenizer().convert_tokens_to_ids([*asked[1:]])]
    prompt = scorer.config.prompt

    assert t5_tokenizer().decode([*prompt.head, *prompt.between, *prompt.tail]) == f"{asked[0]}</s>"
    torch.testing.assert_close(scorer.state_dict()["head.classifier.weight"][0], yes - no)
    assert ("neither its files nor its name" in caplog.text) == (name == "split5")


@pytest.mark.parametrize(
    ("name", "model", "start", "message"),
    [
        ("duot5-base-msmarco", T5, 0, "a T5 that is not asked as monoT5 is .*duot5-base-msmarco. is not supported"),
        ("mt5-13b-mmarco-100k", MT5, 0, "a T5 that is not asked as monoT5 is"),
        (NAME, ENCODER, 0, "a T5 without its decoder cannot re-rank; embedding models have a modules.json"),
        (NAME, (T5ForSequenceClassification, ENCODER[1]), 0, "a T5 with a classifier is not supported"),
        (NAME, T5, 128, "decoder_start_token_id must be a token, not 128"),
    ],
)
def test_models_that_are_refused(name: str, model: Any, start: int, message: str, tmp_path: Path) -> None:
    assert_refused(save_t5(tmp_path / name, tiny_t5(*model)), message, {"decoder_start_token_id": start})


def test_a_sentencepiece_model_gives_the_ids_of_the_fast_tokenizer(tmp_path: Path) -> None:
    """Most folders of monoT5 have no tokenizer.json."""
    tokenizer, saved = t5_tokenizer(), import_protobuf().ModelProto()
    for piece, score in tokenizer._vocab_scores:
        saved.pieces.add(piece=piece, score=score)
    saved.trainer_spec.unk_id, saved.normalizer_spec.name = 2, "identity"
    write_json(tmp_path / "config.json", {"model_type": "t5"})
    write_json(tmp_path / "tokenizer_config.json", {"extra_ids": 0, "tokenizer_class": "T5Tokenizer"})
    (tmp_path / "spiece.model").write_bytes(saved.SerializeToString())
    text = " bees  find ñ </s> <unk>x\n"

    assert load_tokenizer(tmp_path).encode(text).ids == tokenizer(text)["input_ids"]


def test_an_output_matrix_of_its_own_that_is_missing_is_told(tmp_path: Path) -> None:
    assert_refused(
        save_t5(tmp_path / NAME, tiny_t5(*T5)), r"no tensor 'lm_head\.weight'", {"tie_word_embeddings": False}
    )
