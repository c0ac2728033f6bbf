"""Decoders as re-rankers against `transformers`: the causal model on each whole prompt, one after the other."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.decoders import PUBLISHED, last_logits, save_decoder, tiny_decoder
from support.models import as_served, score_batch
from support.prompts import Pair, gemma_pair, mxbai_pair, qwen3_pair, zerank_pair
from support.text_scores import ids_of
from transformers import (
    GemmaForCausalLM,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from bandrank.models.architectures.decoder_reranker import DecoderReranker
from bandrank.models.batch import ScoreBatch
from bandrank.models.loading import LoadedModel, load_model

CLOSE = 1e-5  # float32 through two layers: absolute for scores about 1, relative to larger ones
SMALLEST = "Qwen/Qwen3-Reranker-0.6B"
# Queries with their candidates, of which one has none: an empty one, long and short ones, and texts whose first and
# last pieces could join with what stands beside them.
TEXTS = {
    "how do bees find their way home?": [
        "By the sun.",
        "",
        "42 bees.",
        '"No," she said\n\n',
        "  \n bees",
        "é 🐝 ñandú: x",
    ],
    "what is honey?\n": [],
    "yes": ["<|im_end|>", "no", "bees " * 400],
}
# The class of a model in transformers, and the fields of `Both` from `pair` on.
ZERANK: tuple[Any, ...] = (Qwen3ForCausalLM, zerank_pair, "Yes", "", 0.2)
ASKED: dict[str, tuple[Any, ...]] = {
    "gemma": (GemmaForCausalLM, gemma_pair, "Yes"),
    "qwen2": (Qwen2ForCausalLM, mxbai_pair, "1", "0"),
    "qwen3": (Qwen3ForCausalLM, qwen3_pair, "yes", "no"),
}


@dataclass(frozen=True)
class Both:
    """A model of `transformers`, its folder as we load it, and how its authors put a pair to it."""

    theirs: Any
    ours: LoadedModel
    pair: Pair
    relevant: str
    irrelevant: str = ""  # without it, the score is `part` of the logit of `relevant`
    part: float = 1.0

    def expected(self, query: str, document: str, instruction: str = "") -> float:
        """Returns the plain model's score of a pair."""
        tokenizer = self.ours.tokenizer
        logits = last_logits(self.theirs, self.pair(tokenizer, instruction, query, document))
        relevant = float(logits[tokenizer.token_to_id(self.relevant)])
        return (
            relevant - float(logits[tokenizer.token_to_id(self.irrelevant)])
            if self.irrelevant
            else relevant * self.part
        )


def both(model: str, folder: Path, **more: Any) -> Both:
    """Returns a tiny random model of a published shape. more: arguments of `tiny_config`."""
    kind, *asked = ZERANK if "zerank" in model else ASKED[PUBLISHED[model]["model_type"]]
    theirs = tiny_decoder(kind, PUBLISHED[model], **more)
    ours = load_model(str(save_decoder(folder, theirs)))
    as_served(ours.scorer)
    return Both(theirs, ours, *asked)


@pytest.fixture(scope="module", params=PUBLISHED)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A model of every published shape in turn."""
    return both(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def smallest(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A model of the smallest published shape."""
    return both(SMALLEST, tmp_path_factory.mktemp("model"))


def batch_of(model: LoadedModel, texts: dict[str, list[str]], instruction: str = "") -> ScoreBatch:
    """Returns the token ids of queries with their candidates, as they are served."""
    queries, candidates = zip(*(ids_of(model, *each, instruction) for each in texts.items()), strict=True)
    return score_batch([*queries], [*candidates])


def scores_of(model: LoadedModel, texts: dict[str, list[str]], instruction: str = "") -> list[float]:
    """Returns our scores of all candidates in one batch."""
    with torch.inference_mode():
        return model.scorer(batch_of(model, texts, instruction)).tolist()  # type: ignore[no-any-return]


def test_scores_are_those_of_the_plain_model(each: Both) -> None:
    """A query runs once for all its candidates, but every score is that of a whole prompt, alone and in company."""
    expected = [each.expected(query, document) for query, group in TEXTS.items() for document in group]

    together = scores_of(each.ours, TEXTS)
    alone = [scores_of(each.ours, {query: [document]})[0] for query, group in TEXTS.items() for document in group]

    assert together == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
    assert alone == pytest.approx(expected, abs=CLOSE, rel=CLOSE)
    assert max(expected) - min(expected) > 1000 * CLOSE


@pytest.mark.parametrize("model", [SMALLEST, "mixedbread-ai/mxbai-rerank-base-v2"])
def test_with_an_instruction(model: str, tmp_path: Path) -> None:
    pair = both(model, tmp_path)
    instruction = "Find papers that refute {text} the claim."
    expected = [pair.expected(query, document, instruction) for query, group in TEXTS.items() for document in group]

    scores = scores_of(pair.ours, TEXTS, instruction)

    assert scores == pytest.approx(expected, abs=CLOSE)
    assert max(abs(a - b) for a, b in zip(scores, scores_of(pair.ours, TEXTS), strict=True)) > 100 * CLOSE


@pytest.mark.parametrize("length", [255, 256, 257, 513, 3000])
def test_long_candidates(smallest: Both, length: int) -> None:
    """The rows of a long candidate attend in several runs, here beside a short candidate and another long one."""
    rng = random.Random(length)
    scorer = smallest.ours.scorer
    query = [rng.randrange(300) for _ in range(40)]
    candidates = [[rng.randrange(300) for _ in range(n)] for n in (length, 7, length - 1)]
    yes, no = (smallest.ours.tokenizer.token_to_id(token) for token in ("yes", "no"))
    logits = [last_logits(smallest.theirs, [*query, *candidate]) for candidate in candidates]
    expected = torch.stack([each[yes] - each[no] for each in logits])

    with torch.inference_mode():
        scores = scorer(score_batch([query], [candidates]))

    torch.testing.assert_close(scores, expected, rtol=0, atol=CLOSE)


def test_the_conversion_to_one_label(tmp_path: Path) -> None:
    """In tomaarsen/Qwen3-Reranker-0.6B-seq-cls, a classifier of one output stands behind the same prompt."""
    theirs = tiny_decoder(Qwen3ForSequenceClassification, PUBLISHED[SMALLEST], num_labels=1, pad_token_id=0)
    ours = load_model(str(save_decoder(tmp_path, theirs)))
    expected = [
        float(last_logits(theirs, qwen3_pair(ours.tokenizer, "", query, document)))
        for query, group in TEXTS.items()
        for document in group
    ]

    assert scores_of(ours, TEXTS) == pytest.approx(expected, abs=CLOSE)


def test_the_conversion_to_two_labels(tmp_path: Path) -> None:
    """In michaelfeil/mxbai-rerank-base-v2-seq, the softmax of both labels is the sigmoid of their difference."""
    published = PUBLISHED["mixedbread-ai/mxbai-rerank-base-v2"]
    labels = {0: "0", 1: "1"}
    theirs = tiny_decoder(Qwen2ForSequenceClassification, published, id2label=labels, pad_token_id=0)
    ours = load_model(str(save_decoder(tmp_path, theirs)))
    expected = [
        last_logits(theirs, mxbai_pair(ours.tokenizer, "", query, document)).softmax(-1)[1].item()
        for query, group in TEXTS.items()
        for document in group
    ]

    assert torch.tensor(scores_of(ours, TEXTS)).sigmoid().tolist() == pytest.approx(expected, abs=CLOSE)


def test_half_of_the_prompt_is_shared(smallest: Both) -> None:
    """A query's rows are in a batch once, for all of its candidates."""
    texts = {"how do bees find their way home?": ["By the sun."] * 20}
    seen: list[int] = []
    handle = smallest.ours.scorer.get_submodule("encoder.layers.0").register_forward_pre_hook(
        lambda _, arguments: seen.append(len(arguments[0]))
    )

    with torch.inference_mode():
        batch = batch_of(smallest.ours, texts)
        smallest.ours.scorer(batch)

    handle.remove()
    assert seen == [len(batch.queries.values) + len(batch.candidates.values)]
    assert len(batch.queries) == 1


def test_a_long_candidate_is_scored_by_its_best_passage(smallest: Both) -> None:
    """Every passage has the end of the prompt and is scored as a candidate of its own."""
    scorer = smallest.ours.scorer
    assert isinstance(scorer, DecoderReranker)
    config = replace(scorer.config, max_tokens=400, max_query_tokens=200)
    short = DecoderReranker(config)
    short.load_state_dict(load_model(str(smallest.ours.folder)).scorer.state_dict())
    rng = random.Random(0)
    tail = list(config.prompt.tail)
    query, words = [rng.randrange(300) for _ in range(150)], [rng.randrange(300) for _ in range(600)]
    room = 400 - len(query) - len(tail)
    step = (400 - len(query) + 1 - len(tail)) // 2
    starts = [0]
    while starts[-1] + room < len(words):
        starts.append(starts[-1] + step)

    def score(candidates: list[list[int]], model: Any) -> list[float]:
        with torch.inference_mode():
            return model(score_batch([query], [candidates])).tolist()  # type: ignore[no-any-return]

    expected = max(score([[*words[start : start + room], *tail] for start in starts], scorer))

    assert len(starts) > 2
    assert score([[*words, *tail]], short) == pytest.approx([expected], abs=CLOSE)
