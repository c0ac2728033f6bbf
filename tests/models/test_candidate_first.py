"""Decoders that read the candidate before the query, against `transformers`: the causal model on each whole text."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from support.decoders import CONTENT, PUBLISHED, last_logits, read_as_messages, save_decoder, tiny_decoder
from support.eurobert import LIKE_BERT, save_like_llama, tiny
from support.grouped import BEGIN
from support.models import as_served, score_batch, write_template
from support.prompts import contextual_pair, contextual_text
from support.refusals import assert_refused
from support.text_scores import ids_of
from transformers import MistralForCausalLM, Qwen3ForCausalLM, Qwen3ForSequenceClassification

from bandrank.models.architectures.candidate_first_reranker import CandidateFirstReranker
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.texts import TextEncoder

NAME = "ctxl-rerank-v2-instruct-multilingual-1b"
SHAPE = PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]
CLOSE = 1e-5
TEXTS = {
    "how do bees find their way home?": ["By the sun.", "", "42 bees.", '"No," she said\n\n', "  \n bees", "é 🐝 ñ: x"],
    "what is honey?\n": [],
    "yes": ["<|im_end|>", "no", "bees " * 400],
}


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The plain model, whose score is the logit of token 0."""
    return tiny_decoder(Qwen3ForCausalLM, SHAPE)


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The same model as it is served."""
    model = load_model(str(save_decoder(tmp_path_factory.mktemp(NAME), theirs)))
    as_served(model.scorer)
    return model


def scores_of(model: LoadedModel, texts: dict[str, list[str]], instruction: str = "") -> list[float]:
    """Returns our scores of all candidates in one batch."""
    queries, candidates = zip(*(ids_of(model, *each, instruction) for each in texts.items()), strict=True)
    with torch.inference_mode():
        return model.scorer(score_batch([*queries], [*candidates])).tolist()  # type: ignore[no-any-return]


def expected(model: LoadedModel, score: Callable[[list[int]], float], instruction: str = "") -> list[float]:
    """Returns the scores of all pairs, each tokenised as one text."""
    pairs = [(query, document) for query, group in TEXTS.items() for document in group]
    return [score(contextual_pair(model.tokenizer, instruction, *pair)) for pair in pairs]


@pytest.mark.parametrize("instruction", ["", "Prefer {text} of this year."])
def test_scores_are_those_of_the_plain_model(theirs: Any, ours: LoadedModel, instruction: str) -> None:
    """Alone and in company, with candidates of other queries in the batch."""
    wanted = expected(ours, lambda ids: float(last_logits(theirs, ids)[0]), instruction)
    alone = [scores_of(ours, {query: [one]}, instruction)[0] for query, group in TEXTS.items() for one in group]

    assert scores_of(ours, TEXTS, instruction) == pytest.approx(wanted, abs=CLOSE, rel=CLOSE)
    assert alone == pytest.approx(wanted, abs=CLOSE, rel=CLOSE)
    assert max(wanted) - min(wanted) > 1000 * CLOSE
    assert len(TextEncoder(ours.tokenizer, ours.scorer).query("yes", "Be brief.")[0]) > len(ids_of(ours, "yes", [])[0])


def test_the_conversion_to_one_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in sigridjineth/ctxl-rerank-v2-1b-seq-cls."""
    theirs = tiny_decoder(Qwen3ForSequenceClassification, SHAPE, num_labels=1, pad_token_id=0)
    model = load_model(str(save_decoder(tmp_path / "ctxl-rerank-v2-1b-seq-cls", theirs)))

    wanted = expected(model, lambda ids: float(last_logits(theirs, ids)))

    assert scores_of(model, TEXTS) == pytest.approx(wanted, abs=CLOSE)
    assert not caplog.messages


def test_a_token_that_the_tokenizer_puts_before_a_text(tmp_path: Path) -> None:
    """As in ctxl-rerank-v2-instruct-multilingual-6b; a token behind the text would be read in place of the last."""
    name, theirs = "ctxl-rerank-v2-instruct-multilingual-6b", tiny(MistralForCausalLM, sliding_window=None)
    model = load_model(str(save_like_llama(tmp_path / name, theirs)))
    begin = model.tokenizer.encode("").ids

    wanted = expected(model, lambda ids: float(last_logits(theirs, [*begin, *ids])[0]))

    assert len(begin) == 1
    assert scores_of(model, TEXTS) == pytest.approx(wanted, abs=CLOSE)
    ended = save_like_llama(tmp_path / f"{name}-other", theirs, LIKE_BERT)
    assert_refused(ended, "a tokenizer that cannot read a prompt in parts is not supported")


@pytest.mark.parametrize("begin", ["{{ bos_token }}", BEGIN, ""])
def test_as_sentence_transformers_reads_it(tmp_path: Path, begin: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its template tells a conversion, and what precedes a text; in other words it is refused."""
    folder = save_like_llama(tmp_path, tiny(MistralForCausalLM, sliding_window=None))
    read_as_messages(folder, 0)
    template = begin + contextual_text("", CONTENT["query"], CONTENT["document"])
    write_template(folder, template)
    documents = ["By the sun.", "Never."]
    pairs = [("how?", document) for document in documents]
    wanted = CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=torch.nn.Identity(), batch_size=1)

    found = scores_of(load_model(str(folder)), {"how?": documents})

    assert found == pytest.approx(wanted.tolist(), abs=CLOSE)
    assert not caplog.messages
    write_template(folder, template.replace("<Query>", "<Q>"))
    assert_refused(folder, "has 'uery> ")


def test_the_head_of_the_prompt_is_run_once(ours: LoadedModel) -> None:
    """For all candidates of all queries; a query's rows follow each of its candidates."""
    seen: list[int] = []
    handle = ours.scorer.get_submodule("encoder.layers.0").register_forward_pre_hook(
        lambda _, arguments: seen.append(len(arguments[0]))
    )
    texts = {"how?": ["By the sun."] * 3, "when?": ["Never."]}
    scores_of(ours, texts)
    handle.remove()

    ids = [ids_of(ours, *each) for each in texts.items()]
    pairs = [len(query) + len(candidate) for query, candidates in ids for candidate in candidates]
    assert seen == [len(ours.scorer.config.prompt.head) + sum(pairs)]


def test_a_candidate_that_is_cut_ends_its_line(ours: LoadedModel) -> None:
    """As one that is whole; so the query begins a line. All words that are lost are counted."""
    config = replace(ours.scorer.config, max_candidate_tokens=40)
    encoder = TextEncoder(ours.tokenizer, CandidateFirstReranker(config))
    texts = ["the sun " * 9, "the sun. " * 60]
    pieces = encoder.pieces(texts)

    whole, cut = encoder.candidates(pieces, query_tokens=9)

    (last,) = ours.tokenizer.encode("\n", add_special_tokens=False).ids
    assert [encoder.text_of(whole[0].tolist())] == [f" {texts[0]}\n"]
    assert len(whole[1]) == 40
    assert whole[1][-1] == last
    assert encoder.text_of(whole[1].tolist()[:-1]) in f" {texts[1]}"
    assert cut == [0, len(encoder.tokenizer.encode(f" {texts[1]}\n", add_special_tokens=False).ids) - 40]


def test_a_long_candidate_is_scored_by_its_best_passage(ours: LoadedModel) -> None:
    """Every passage has the head of the prompt, the end of its line and the query, and fits with them."""
    config = replace(ours.scorer.config, max_tokens=200, max_query_tokens=100)
    short = CandidateFirstReranker(config)
    short.load_state_dict(load_model(str(ours.folder)).scorer.state_dict())
    asked, (candidate,) = ids_of(ours, "how do bees?", ["by the sun and " * 120])
    room = 200 - len(config.prompt.head) - len(asked)
    step = (room + 1 - 1) // 2
    starts = [0]
    while starts[-1] + room < len(candidate):
        starts.append(starts[-1] + step)
    passages = [[*candidate[at : at + room - 1], candidate[-1]] for at in starts[:-1]] + [[*candidate[starts[-1] :]]]
    with torch.inference_mode():
        apart = ours.scorer(score_batch([asked], [passages]))
        (best,) = short(score_batch([asked], [[candidate]])).tolist()

    assert len(starts) > 3
    assert best == pytest.approx(float(apart.max()), abs=CLOSE)
    assert short.num_rows(len(asked), len(candidate)) == sum(map(len, passages)) + len(asked) * len(passages)
