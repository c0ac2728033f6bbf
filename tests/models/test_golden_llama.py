"""NVIDIA's re-rankers and bi-encoders of Llama against `transformers`: its causal model with a mask that hides nothing,
on the whole text of each pair.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.grouped import LLAMA, llama_tokenizer, save_llama, score_vector, states_without_mask, tiny_llama
from support.models import as_served, edit_json, write_bi_encoder, write_json, write_modules, write_template
from support.refusals import assert_refused
from support.text_scores import ids_of, scores_of_texts
from transformers import LlamaModel

from bandrank.models import checkpoint
from bandrank.models.architectures import SequenceCrossEncoder
from bandrank.models.layers.positions import Rotary, SlowRotary, YarnRotary
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.windowed import windowed

CLOSE = 1e-5  # float32 through three layers, of scores about 1
ROPE = LLAMA["rope_scaling"]
LENGTH = "original_max_position_embeddings"
# Queries with their candidates, of which one has none: an empty one, long and short ones, and texts whose first and
# last pieces could join with what stands beside them.
TEXTS = {
    "how do bees find their way home?": ["By the sun.", "", "42 bees", '"No," she said\n\n', "  \n bees", ":: x"],
    "what is honey?\n": [],
    " ": ["<|begin_of_text|>", "é 🐝 ñandú: x", "bees " * 400],
}


def whole_ids(query: str, passage: str) -> list[int]:
    """Returns the ids of a pair, put together as the model card says."""
    return llama_tokenizer().encode(f"question:{query} \n \n passage:{passage}").ids  # type: ignore[no-any-return]


def expected(ids: list[int], pooling: str = "avg", model: LlamaModel | None = None) -> float:
    """Returns the score of a pair as NVIDIA's code computes it."""
    states = states_without_mask(model or tiny_llama(), ids)
    pooled = {"avg": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    return float(score_vector()[0] @ pooled) / LLAMA["temperature"]


def scores(model: LoadedModel) -> list[float]:
    """Returns our scores of all of `TEXTS`."""
    return [score for query, texts in TEXTS.items() for score in scores_of_texts(model, query, texts)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a re-ranker."""
    return save_llama(tmp_path / "theirs", tiny_llama(), score_vector())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A re-ranker that is loaded once."""
    return load_model(str(save_llama(tmp_path_factory.mktemp("once"), tiny_llama(), score_vector())))


@pytest.mark.parametrize("pooling", ["avg", "cls", "last"])
def test_scores_are_those_of_the_whole_texts(folder: Path, pooling: str) -> None:
    """Scores agree in company, alone, as served and from our own checkpoint."""
    edit_json(folder / "config.json", {"pooling": pooling})
    model = load_model(str(folder))
    assert isinstance(model.scorer, SequenceCrossEncoder)
    theirs = [expected(whole_ids(query, text), pooling) for query, texts in TEXTS.items() for text in texts]
    checkpoint.save(model.scorer, folder.parent / "ours", tokenizer=folder / "tokenizer.json")

    assert scores(model) == pytest.approx(theirs, abs=CLOSE)
    alone = [scores_of_texts(model, query, [text])[0] for query, texts in TEXTS.items() for text in texts]
    assert alone == pytest.approx(theirs, abs=CLOSE)
    assert scores(load_model(str(folder.parent / "ours"))) == pytest.approx(theirs, abs=CLOSE)
    as_served(model.scorer)
    assert scores(model) == pytest.approx(theirs, abs=CLOSE)
    assert max(theirs) - min(theirs) > 1000 * CLOSE


@given(texts=st.tuples(*[st.text(st.sampled_from("ab 3\n\t.:'s\r\u00a0é🐝|<>")) | st.text()] * 2))
def test_ids_are_those_of_the_whole_text(model: LoadedModel, texts: tuple[str, str]) -> None:
    """Ids agree whatever the texts begin and end with, even if a piece joins the colon with what follows it."""
    query, candidates = ids_of(model, texts[0], [texts[1]])

    assert [0, *query, *candidates[0]] == whole_ids(*texts)
    assert llama_tokenizer().encode("passage:By").tokens[-1] == ":By"


def test_positions_as_they_were_published_and_as_they_are_saved_now(folder: Path) -> None:
    """The base stands beside the numbers of the scaling, or among them, or there is no scaling."""
    published = {"rope_scaling": ROPE, "rope_theta": 500_000.0, "rope_parameters": None}
    scaled, rope = SlowRotary(500_000.0, 32.0, trained=8192), ROPE | {"rope_theta": 500_000.0}
    yarn = {"type": "yarn", "factor": 4.0, LENGTH: 64}
    forms: list[tuple[dict[str, Any], Rotary]] = [
        ({}, scaled),
        ({"rope_scaling": None, "rope_theta": None, "rope_parameters": rope}, scaled),
        ({"rope_scaling": rope, "rope_theta": None}, scaled),
        ({"rope_scaling": None}, Rotary(500_000.0)),
        ({"rope_scaling": yarn}, YarnRotary(500_000.0, 4.0, trained=64, attention_factor=0.1 * math.log(4.0) + 1)),
        (
            {"rope_scaling": yarn | {"attention_factor": 0.7, "beta_fast": 16}, LENGTH: 32},
            YarnRotary(500_000.0, 4.0, trained=32, fast=16.0, attention_factor=0.7),
        ),
    ]
    for settings, rotary in forms:
        edit_json(folder / "config.json", published | settings)
        assert load_model(str(folder)).scorer.config.encoder.rotary == rotary


def test_pairs_are_turned_as_by_the_library() -> None:
    """Frequencies of slow, fast and middling pairs are the library's to the bit, so that long texts agree too."""
    exponents = torch.arange(0, 64, 2) / 64

    found = SlowRotary(500_000.0, 32.0, trained=8192).frequencies(exponents)

    assert torch.equal(found, tiny_llama(hidden_size=256, head_dim=64).rotary_emb.inv_freq)
    for trained in (2048, 64, 4):
        yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, LENGTH: trained}
        library = tiny_llama(hidden_size=256, head_dim=64, rope_scaling=None, rope_parameters=yarn).rotary_emb
        ours = YarnRotary(10_000.0, 4.0, trained=trained, attention_factor=library.attention_scaling)
        assert torch.equal(ours.frequencies(exponents), library.inv_freq)
    kept = found / Rotary(500_000.0).frequencies(exponents)
    assert {1.0, 1 / 32} < {*kept.tolist()}


def test_a_long_candidate_is_scored_by_its_best_passage(folder: Path) -> None:
    """Each passage stands behind the prompt, the first one with the colon."""
    edit_json(folder / "config.json", {"max_position_embeddings": 200})
    scorer = (model := load_model(str(folder))).scorer
    assert isinstance(scorer, SequenceCrossEncoder)
    query, text = "how do bees find their way?", "bees and honey " * 100
    query_ids, (candidate,) = ids_of(model, query, [text])
    num = len(query_ids)
    rows = [[0, *query_ids, *candidate[begin:end]] for begin, end in scorer.passage_bounds(num, len(candidate))]

    assert scores_of_texts(model, query, [text]) == pytest.approx([max(map(expected, rows))], abs=CLOSE)
    assert len(rows) > 2
    assert max(map(len, rows)) == 200 == scorer.config.max_tokens
    assert scorer.num_rows(num, len(candidate)) == sum(map(len, rows))
    limit = scorer.passages_limit(num, 3)
    assert [len(scorer.passage_bounds(num, most)) for most in (limit, limit + 1)] == [3, 4]


def test_what_is_known_of_a_model(model: LoadedModel) -> None:
    """The facts are for `bandrank check`, and the number of products tells what a row costs."""
    text_of = model.texts().text_of
    facts = model.scorer.facts(text_of, text_of)

    assert facts["reads"] == "<|begin_of_text|> question:QUERY \\n \\n passage :CANDIDATE"
    assert model.scorer.config.encoder.products_per_layer == 64 * ((4 + 2 * 2 + 4) * 16 + 3 * 96)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "gelu", "mlp_bias": True}, "a Llama with {'hidden_act': 'gelu', 'mlp_bias': True} is not"),
        ({"attention_bias": True, "is_causal": True}, "{'attention_bias': True, 'is_causal': True}"),
        ({"pooling": "weighted_avg"}, "pooling 'weighted_avg' is not supported, only avg, cls, last"),
        ({"temperature": 0}, "temperature must be a number above 0, got 0"),
        ({"num_key_value_heads": None}, "no number for num_key_value_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3 must divide num_heads 4"),
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
            "rotary positions of .*'longrope'.* are not supported",
        ),
        ({"rope_scaling": ROPE | {"low_freq_factor": None}}, "low_freq_factor of rotary positions must be a number"),
        ({"rope_scaling": ROPE | {"high_freq_factor": 1.0}}, "fast pairs must turn more often than slow ones"),
    ],
)
def test_settings_that_are_not_supported(folder: Path, settings: dict[str, Any], message: str) -> None:
    """Ignoring these settings would give wrong scores."""
    assert_refused(folder, message, settings)


def test_heads_and_tokenizers_that_are_not_supported(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", {"post_processor": None})
    assert_refused(folder, "the tokenizer puts no token before a text")
    save_llama(folder, tiny_llama(), score_vector(outputs=2))
    assert_refused(folder, "classifier with one output, but this model has 2")
    save_llama(folder, tiny_llama())
    assert_refused(folder, "without a score head cannot re-rank; an embedding model needs the modules")


def test_a_chat_template_of_the_same_words(folder: Path) -> None:
    """sentence-transformers would put pairs into the template, so it must give our prompt, as vLLM's for these models
    does.
    """
    said = '{{ (messages | selectattr("role", "eq", "ROLE") | first).content }}'
    template = f"question:{said.replace('ROLE', 'query')} \n \n passage:{said.replace('ROLE', 'document')}"
    write_modules(folder, {"": "base.modules.transformer.Transformer"})
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"message": {}}, "max_seq_length": 512})
    write_template(folder, template)

    assert load_model(str(folder)).scorer.config.max_tokens == 512

    write_template(folder, template.replace("passage:", "passage: "))
    assert_refused(folder, r"a chat template that has ' This one\.' where")


def test_a_bi_encoder(tmp_path: Path) -> None:
    """As in nvidia/llama-nemotron-embed-1b-v2, vectors are means of all states, those of the first token and the prompt
    too.
    """
    folder = save_llama(tmp_path / "theirs", tiny_llama())
    write_bi_encoder(folder, {"pooling_mode": "mean"}, prompts={"query": "query: ", "document": "passage: "})
    model = load_model(str(folder))
    as_served(model.scorer)
    texts = ["By the sun.", "", "bees " * 300]

    def vector(text: str) -> torch.Tensor:
        state = states_without_mask(tiny_llama(), llama_tokenizer().encode(text).ids).mean(0)
        return state / state.norm()

    asked = vector("query: where do bees live?")

    found = scores_of_texts(model, "where do bees live?", texts)

    assert found == pytest.approx([float(asked @ vector(f"passage: {text}")) for text in texts], abs=CLOSE)
    assert model.scorer.config.max_tokens == 8192
    with pytest.raises(ValueError, match="its texts do not stand between two tokens such as"):
        windowed(model.scorer, 4)
