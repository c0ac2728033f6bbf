"""NVIDIA's re-rankers and bi-encoders of Llama against `transformers`: its causal model with a mask that hides nothing,
on the whole text of each pair.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.grouped import LLAMA, llama_tokenizer, save_llama, score_vector, states_without_mask, tiny_llama
from support.models import as_served, change_weights, edit_json, write_json, write_modules
from support.text_scores import ids_of, scores_of_texts
from transformers import LlamaModel

from bandrank.models import checkpoint
from bandrank.models.architectures import BiEncoder, SequenceCrossEncoder
from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.encoders.llama import LlamaConfig
from bandrank.models.layers.positions import Rotary, SlowRotary
from bandrank.models.loading import LoadedModel, load_model
from bandrank.models.windowed import windowed

CLOSE = 1e-5  # float32 through three layers, of scores about 1
# Queries with their candidates: ragged, with none, with an empty one, and with texts whose first and last pieces could
# join with what stands beside them.
TEXTS = {
    "how do bees find their way home?": ["By the sun.", "", "42 bees", '"No," she said\n\n', "  \n bees", ":: x"],
    "what is honey?\n": [],
    " ": ["<|begin_of_text|>", "é 🐝 ñandú: x", "bees " * 400],
}


def whole_ids(query: str, passage: str) -> list[int]:
    """As the model card puts a pair together."""
    return llama_tokenizer().encode(f"question:{query} \n \n passage:{passage}").ids  # type: ignore[no-any-return]


def expected(model: LlamaModel, query: str, passage: str, pooling: str = "avg") -> float:
    """The score of a pair by NVIDIA's code."""
    states = states_without_mask(model, whole_ids(query, passage))
    pooled = {"avg": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]
    return float(score_vector()[0] @ pooled) / LLAMA["temperature"]


def scores(model: LoadedModel) -> list[float]:
    """Ours, of all of `TEXTS`."""
    return [score for query, texts in TEXTS.items() for score in scores_of_texts(model, query, texts)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a re-ranker."""
    return save_llama(tmp_path / "theirs", tiny_llama(), score_vector())


@pytest.mark.parametrize("pooling", ["avg", "cls", "last"])
def test_scores_are_those_of_the_whole_texts(folder: Path, pooling: str) -> None:
    """In company, alone, as served, and from a checkpoint of ours."""
    edit_json(folder / "config.json", {"pooling": pooling})
    model = load_model(str(folder))
    assert isinstance(model.scorer, SequenceCrossEncoder)
    theirs = [expected(tiny_llama(), query, text, pooling) for query, texts in TEXTS.items() for text in texts]
    checkpoint.save(model.scorer, folder.parent / "ours", tokenizer=folder / "tokenizer.json")

    assert scores(model) == pytest.approx(theirs, abs=CLOSE)
    alone = [scores_of_texts(model, query, [text])[0] for query, texts in TEXTS.items() for text in texts]
    assert alone == pytest.approx(theirs, abs=CLOSE)
    assert scores(load_model(str(folder.parent / "ours"))) == pytest.approx(theirs, abs=CLOSE)
    as_served(model.scorer)
    assert scores(model) == pytest.approx(theirs, abs=CLOSE)
    assert max(theirs) - min(theirs) > 1000 * CLOSE


@given(texts=st.tuples(*[st.text(st.sampled_from("ab 3\n\t.:'s\r\u00a0é🐝|<>")) | st.text()] * 2))
def test_ids_are_those_of_the_whole_text(folder_once: LoadedModel, texts: tuple[str, str]) -> None:
    """Whatever stands at the borders of the texts, also where a piece has the colon and what follows it."""
    query, candidates = ids_of(folder_once, texts[0], [texts[1]])

    assert [0, *query, *candidates[0]] == whole_ids(*texts)


@pytest.fixture(scope="module")
def folder_once(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A re-ranker that is loaded once."""
    return load_model(str(save_llama(tmp_path_factory.mktemp("once"), tiny_llama(), score_vector())))


def test_a_piece_may_have_the_colon_and_what_follows(folder_once: LoadedModel) -> None:
    """So the comparison above could fail, for parts that end with the colon."""
    pieces = llama_tokenizer().encode("passage:By", add_special_tokens=False).tokens

    assert pieces[-1] == ":By"
    assert folder_once.scorer.candidate_template.wording.around() == (":", "")


def test_positions_as_they_were_published_and_as_they_are_saved_now(folder: Path) -> None:
    """With the base beside or among the numbers of the scaling, or with none; others are refused."""
    rope = LLAMA["rope_scaling"] | {"rope_theta": 500_000.0}
    published = {"rope_scaling": LLAMA["rope_scaling"], "rope_theta": 500_000.0, "rope_parameters": None}
    scaled = SlowRotary(500_000.0, 32.0, trained=8192, slow=1.0, fast=4.0)
    forms: list[tuple[dict[str, Any], Rotary]] = [
        ({}, scaled),
        ({"rope_scaling": None, "rope_theta": None, "rope_parameters": rope}, scaled),
        ({"rope_scaling": rope, "rope_theta": None}, scaled),
        ({"rope_scaling": None}, Rotary(500_000.0)),
    ]
    for settings, rotary in forms:
        edit_json(folder / "config.json", published | settings)
        encoder = load_model(str(folder)).scorer.config.encoder
        assert isinstance(encoder, LlamaConfig)
        assert encoder.rotary == rotary
    edit_json(folder / "config.json", {"rope_scaling": None}, remove=("rope_theta",))
    assert load_model(str(folder)).scorer.config.encoder.rotary == Rotary(10_000.0)


@pytest.mark.parametrize("name", ["original_max_position_embeddings", "low_freq_factor", "factor"])
def test_positions_that_lack_a_number_are_refused(folder: Path, name: str) -> None:
    """By its name in config.json."""
    edit_json(folder / "config.json", {"rope_scaling": LLAMA["rope_scaling"] | {name: None}})
    with pytest.raises(BadCheckpoint, match=f"{name} of rotary positions must be a number above 0, got None"):
        load_model(str(folder))


def test_positions_whose_fast_pairs_are_slow_are_refused(folder: Path) -> None:
    """They would divide by zero."""
    edit_json(folder / "config.json", {"rope_scaling": LLAMA["rope_scaling"] | {"high_freq_factor": 1.0}})
    with pytest.raises(BadCheckpoint, match="fast pairs must turn more often than slow ones"):
        load_model(str(folder))


def test_pairs_are_turned_as_by_the_library() -> None:
    """To the bit, so that long texts are too: those that turn slowly, fast, and in between."""
    published = {"hidden_size": 256, "head_dim": 64}
    rotary = SlowRotary(500_000.0, 32.0, trained=8192)

    found = rotary.frequencies(torch.arange(0, 64, 2) / 64)

    assert torch.equal(found, tiny_llama(**published).rotary_emb.inv_freq)
    kept = found / Rotary(500_000.0).frequencies(torch.arange(0, 64, 2) / 64)
    assert (kept == 1).any()
    assert (kept == 1 / 32).any()
    assert ((kept > 0.05) & (kept < 0.95)).any()


def test_the_scaling_of_positions_matters() -> None:
    """The comparisons above can fail: without it a score is another by far."""
    query, passage = "how do bees find their way?", "bees " * 400
    rope = {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}

    assert abs(expected(tiny_llama(), query, passage) - expected(tiny_llama(**rope), query, passage)) > 100 * CLOSE


def test_a_long_candidate_is_scored_by_its_best_passage(folder: Path) -> None:
    """Each stands behind the prompt, the first with the colon; a query leaves room for one."""
    edit_json(folder / "config.json", {"max_position_embeddings": 200})
    model = load_model(str(folder))
    (query_ids, (candidate,)) = ids_of(model, "how do bees find their way?", ["bees and honey " * 100])
    bounds = model.scorer.passage_bounds(len(query_ids), len(candidate))  # type: ignore[operator]  # of a sequence scorer
    whole = load_model(str(save_llama(folder.parent / "whole", tiny_llama(), score_vector())))
    rows = [[0, *query_ids, *candidate[begin:end]] for begin, end in bounds]
    theirs = [float(score_vector()[0] @ states_without_mask(tiny_llama(), ids).mean(0)) / 0.5 for ids in rows]

    score = scores_of_texts(model, "how do bees find their way?", ["bees and honey " * 100])

    assert score == pytest.approx([max(theirs)], abs=CLOSE)
    assert len(bounds) > 2
    assert max(map(len, rows)) == 200 == model.scorer.config.max_tokens
    assert model.scorer.num_rows(len(query_ids), len(candidate)) == sum(map(len, rows))
    limit = model.scorer.passages_limit(len(query_ids), 3)
    assert len(model.scorer.passage_bounds(len(query_ids), limit)) == 3  # type: ignore[operator]
    assert len(model.scorer.passage_bounds(len(query_ids), limit + 1)) == 4  # type: ignore[operator]
    assert whole.scorer.config.max_tokens == 8192


def test_what_is_known_of_a_model(folder: Path) -> None:
    """For `bandrank check`: the prompt and the head; and what a row costs."""
    model = load_model(str(folder))

    facts = model.scorer.facts(lambda ids: "".join(filter(None, map(model.tokenizer.id_to_token, ids))))

    assert facts["reads"] == "<|begin_of_text|> question:QUERY \\n \\n passage :CANDIDATE"
    assert facts["head"] == "LogitHead"
    assert model.scorer.config.encoder.products_per_layer == 64 * ((4 + 2 * 2 + 4) * 16 + 3 * 96)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "gelu"}, "a Llama with {'hidden_act': 'gelu'} is not supported"),
        ({"attention_bias": True}, "'attention_bias': True"),
        ({"mlp_bias": True}, "'mlp_bias': True"),
        ({"is_causal": True}, "'is_causal': True"),
        ({"pooling": "weighted_avg"}, "pooling 'weighted_avg' is not supported, only avg, cls, last"),
        ({"temperature": 0}, "temperature must be a number above 0, got 0"),
        ({"num_key_value_heads": None}, "no number for num_key_value_heads"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3 must divide num_heads 4"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary positions of .*'yarn'.* are not supported"),
        ({"num_hidden_layers": 2}, "config.json names 2 layers, the weights have 3"),
    ],
)
def test_settings_that_are_not_supported(folder: Path, settings: dict[str, Any], message: str) -> None:
    """They are refused, as they would give wrong scores."""
    edit_json(folder / "config.json", settings)
    with pytest.raises(BadCheckpoint, match=message):
        load_model(str(folder))


def test_heads_and_tokenizers_that_are_not_supported(folder: Path) -> None:
    """A classifier of two outputs, none, biases, and texts without a token before them."""
    change_weights(folder, lambda weights: weights | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    with pytest.raises(BadCheckpoint, match=r"the weights have no tensor 'layers.0.self_attn.k_proj.bias'"):
        load_model(str(folder))
    save_llama(folder, tiny_llama(), score_vector(outputs=2))
    with pytest.raises(BadCheckpoint, match="a classifier of one output, this model has 2"):
        load_model(str(folder))
    save_llama(folder, tiny_llama())
    with pytest.raises(BadCheckpoint, match="without a score head cannot re-rank; an embedding model"):
        load_model(str(folder))
    save_llama(folder, tiny_llama(), score_vector())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    write_json(folder / "tokenizer.json", tokenizer | {"post_processor": None})
    with pytest.raises(BadCheckpoint, match="the tokenizer puts no token before a text"):
        load_model(str(folder))


def test_a_chat_template_of_the_same_words(folder: Path) -> None:
    """In which sentence-transformers would put a pair together: as vLLM's for these models, or it is refused."""
    said = '{{ (messages | selectattr("role", "eq", "ROLE") | first).content }}'
    template = "{{ bos_token }}question:" + said.replace("ROLE", "query")
    template += " \n \n passage:" + said.replace("ROLE", "document")
    write_modules(folder, {"": "base.modules.transformer.Transformer"})
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"message": {}}, "max_seq_length": 512})
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

    model = load_model(str(folder))

    assert scores_of_texts(model, "what is honey?", ["bees"]) == pytest.approx(
        [expected(tiny_llama(), "what is honey?", "bees")], abs=CLOSE
    )
    assert model.scorer.config.max_tokens == 512
    (folder / "chat_template.jinja").write_text(template.replace("passage:", "passage: "), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"a chat template that goes on with ' This one\.' where"):
        load_model(str(folder))


def test_a_bi_encoder(tmp_path: Path) -> None:
    """nvidia/llama-nemotron-embed-1b-v2: means of all states, those of the prompt too, behind the first token."""
    theirs = tiny_llama()
    folder = save_llama(tmp_path / "theirs", theirs)
    write_modules(folder, {"": "models.Transformer", "1_Pooling": "models.Pooling", "2_Normalize": "models.Normalize"})
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": 64, "pooling_mode": "mean"})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 8192})
    prompts = {"query": "query: ", "document": "passage: "}
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})
    model = load_model(str(folder))
    as_served(model.scorer)
    assert isinstance(model.scorer, BiEncoder)
    texts = ["By the sun.", "", "bees " * random.Random(0).randint(300, 400)]

    def vector(text: str) -> torch.Tensor:
        state = states_without_mask(theirs, llama_tokenizer().encode(text).ids).mean(0)
        return state / state.norm()

    asked = vector("query: where do bees live?")

    found = scores_of_texts(model, "where do bees live?", texts)

    assert found == pytest.approx([float(asked @ vector(f"passage: {text}")) for text in texts], abs=CLOSE)
    assert model.scorer.config.max_tokens == 8192
    with pytest.raises(ValueError, match="its texts do not stand between two tokens such as"):
        windowed(model.scorer, 4)
