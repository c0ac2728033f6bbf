"""Decoders with code of their own: zerank gets the prompt of its code, also under its name alone, and models with other
code are refused.

Other tests compare zerank's scores with those of `transformers`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from support.decoders import PUBLISHED, last_logits, read_as_messages, save_decoder, tiny_decoder
from support.models import edit_json, write_template
from support.prompts import zerank_pair
from support.refusals import assert_refused
from support.text_scores import scores_of_texts
from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification

from bandrank.models import checkpoint
from bandrank.models.loading import load_model
from bandrank.models.readings import read_pair
from bandrank.models.texts import TextEncoder

ZERANK, QWEN = "zeroentropy/zerank-1-small", "Qwen/Qwen3-Reranker-0.6B"
# Without special tokens, because white space beside those in a text is dropped too.
AWKWARD = st.lists(st.sampled_from([*" \n\t\r:?.,<|'\"019aeséE", "\u0301", "\u00a0", "🐝", "no", " bees"])).map("".join)
TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OF_PAIRS = TEMPLATE.replace("message.role }}", "{'query': 'system', 'document': 'user'}[message.role] }}")
QUERY, DOCUMENTS = " how do bees find their way?\n", ["By the sun.", "Honey. ", "no", "bees " * 30]


def saved(folder: Path, published: str = ZERANK) -> Path:
    """Saves a tiny random model, and returns its folder."""
    return save_decoder(folder, tiny_decoder(Qwen3ForCausalLM, PUBLISHED[published]))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    """Returns a text encoder with zerank's templates."""
    model = load_model(str(saved(tmp_path_factory.mktemp("model"))))
    return TextEncoder(model.tokenizer, model.scorer)


@given(query=AWKWARD, document=AWKWARD)
def test_the_ids_are_those_of_the_whole_text(encoder: TextEncoder, query: str, document: str) -> None:
    """White space around the query and the document is dropped."""
    asked, _ = encoder.query(query)
    (candidate,), _ = encoder.candidates(encoder.pieces([document]), query_tokens=len(asked))

    assert [*asked, *candidate] == zerank_pair(encoder.tokenizer, "", query, document)


def test_tokens_have_their_places_in_the_text_as_given(encoder: TextEncoder) -> None:
    """Places count the white space that is dropped."""
    query, document = " bees?", "\n By the sun.  "
    readings = read_pair(encoder, query, document)

    for text, reading in zip((query, document), readings, strict=True):
        spans = [(token.start, token.end) for token in reading.tokens if token.start is not None]
        assert "".join(text[start:end] for start, end in spans) == text.strip()


def test_an_instruction_has_no_place(encoder: TextEncoder) -> None:
    """A request with an instruction is answered with a warning."""
    assert not encoder.takes_instructions


def test_it_may_have_the_template_that_its_code_asks_for(tmp_path: Path) -> None:
    """A folder with another chat template is refused."""
    folder = saved(tmp_path)
    write_template(folder, TEMPLATE)
    load_model(str(folder))
    write_template(folder, TEMPLATE.replace("assistant\n", "assistant\n<think>"))
    assert_refused(folder, "that has '<think>' where that of the published models has ''")


@pytest.mark.parametrize("kind", [Qwen3ForCausalLM, Qwen3ForSequenceClassification])
def test_without_its_code_the_name_tells(tmp_path: Path, kind: Any) -> None:
    """zerank-2 was first published without a word about code, and conversions to a classifier have none."""
    theirs = tiny_decoder(kind, PUBLISHED[QWEN], num_labels=1, pad_token_id=0)
    model = load_model(str(save_decoder(tmp_path / "Zerank-2", theirs)))
    output = model.tokenizer.token_to_id("Yes") if kind is Qwen3ForCausalLM else 0
    pairs = [zerank_pair(model.tokenizer, "", QUERY, document) for document in DOCUMENTS]
    expected = [float(last_logits(theirs, pair)[output]) / 5 for pair in pairs]
    assert scores_of_texts(model, QUERY, DOCUMENTS) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("template", [OF_PAIRS, OF_PAIRS.replace("message.content", "message.content | trim")])
def test_as_sentence_transformers_reads_it(tmp_path: Path, template: str) -> None:
    """As zerank-2 is published since May 2026; whether white space around texts counts is up to the template."""
    folder = save_decoder(tmp_path / "zerank-2-reranker", tiny_decoder(Qwen3ForCausalLM, PUBLISHED[QWEN]))
    read_as_messages(folder, load_model(str(folder)).tokenizer.token_to_id("Yes"), add_generation_prompt=True)
    write_template(folder, template)
    pairs = [(QUERY, document) for document in DOCUMENTS]
    expected = CrossEncoder(str(folder), device="cpu").predict(pairs, activation_fn=torch.nn.Identity()) / 5

    assert scores_of_texts(load_model(str(folder)), QUERY, DOCUMENTS) == pytest.approx(expected.tolist(), abs=1e-5)


def test_saved_as_our_own_checkpoint(tmp_path: Path) -> None:
    """Loaded from our checkpoint, the tokenizer still drops the white space around a text."""
    model = load_model(str(saved(tmp_path / "theirs")))
    (tmp_path / "ours").mkdir()
    model.tokenizer.save(str(tmp_path / "ours" / "tokenizer.json"))
    checkpoint.save(model.scorer, tmp_path / "ours", tokenizer=tmp_path / "ours" / "tokenizer.json")

    again = load_model(str(tmp_path / "ours"))

    assert again.scorer.config == model.scorer.config
    assert again.tokenizer.encode(" bees\n").ids == model.tokenizer.encode("bees").ids


@pytest.mark.parametrize(
    "auto_map",
    [
        {"AutoModel": "modeling.JinaForRanking"},  # as jinaai/jina-reranker-v3, which scores several at once
        {"AutoConfig": "configuration_other.OtherConfig"},
    ],
)
def test_other_code_is_refused(tmp_path: Path, auto_map: dict[str, Any]) -> None:
    """A model with other code must not be asked with the prompt of Qwen3-Reranker."""
    folder = saved(tmp_path, QWEN)
    edit_json(folder / "config.json", {"auto_map": auto_map})
    [code] = auto_map.values()
    assert_refused(folder, rf"code of its own \({code}\), which is not run, is not supported")
