"""A decoder's own chat template, which sentence-transformers renders: it has our prompt, or the model is refused."""

from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from support.decoders import CONTENT, KINDS, PUBLISHED, modalities, read_as_messages, save_decoder, tiny_decoder
from support.models import as_served, edit_json, write_json, write_modules, write_template
from support.refusals import assert_refused
from support.text_scores import scores_of_texts
from transformers import Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model

from bandrank.models.checkpoint import BadCheckpoint
from bandrank.models.hf.decoder_reranker import TASK
from bandrank.models.loading import load_model

TRIMMED = CONTENT["query"].replace("first", "first | trim")
TEMPLATE = f"""\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {CONTENT["system"].replace("first", f'first | default("{TASK}", true)')}
<Query>: {CONTENT["query"]}
<Document>: {CONTENT["document"]}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{{{ "" }}}}"""
IN_PARTS = TEMPLATE.replace('content") | first }}', 'content.0.text") | first }}')
QUERY, DOCUMENTS = "how do bees find their way?", ["By the sun.", "Honey.", "no", "bees " * 30]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A re-ranker's folder that sentence-transformers can load, still without a chat template."""
    save_decoder(tmp_path, tiny_decoder(Qwen3ForCausalLM, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]))
    read_as_messages(tmp_path, *map(load_model(str(tmp_path)).tokenizer.token_to_id, ("yes", "no")))
    return tmp_path


def scores(folder: Path, instruction: str = "") -> list[float]:
    """Returns our scores of the documents."""
    model = load_model(str(folder))
    as_served(model.scorer)
    return scores_of_texts(model, QUERY, DOCUMENTS, instruction)


@pytest.mark.parametrize(("template", "form"), [(TEMPLATE, "flat"), (IN_PARTS, "structured")])
def test_scores_are_those_of_sentence_transformers(folder: Path, template: str, form: str) -> None:
    """sentence-transformers puts pairs together by the template."""
    write_template(folder, template)
    edit_json(folder / "sentence_bert_config.json", modalities(form))
    theirs = CrossEncoder(str(folder), device="cpu")

    expected = theirs.predict([(QUERY, document) for document in DOCUMENTS], activation_fn=torch.nn.Identity())

    assert scores(folder) == pytest.approx(expected.tolist(), abs=1e-5)


def refusal(folder: Path, template: str) -> str:
    """Returns the message with which a model with that template is refused."""
    write_template(folder, template)
    with pytest.raises(BadCheckpoint) as refused:
        load_model(str(folder))
    return str(refused.value)


def test_another_template_is_refused(folder: Path) -> None:
    message = refusal(folder, TEMPLATE.replace("<Query>:", "<Question>:"))
    assert r"that has 'stion>: which pair?" in message
    assert r"where that of the published models has 'ry>: which pair?" in message


def test_white_space_around_texts_must_stay(folder: Path) -> None:
    """A template that trims a text would score another one than we do."""
    assert "has 'which pair?" in refusal(folder, TEMPLATE.replace(CONTENT["query"], TRIMMED))


def test_a_template_that_cannot_take_a_pair_is_refused(folder: Path) -> None:
    lost = "its text lacks the query or the document"
    assert lost in refusal(folder, TEMPLATE.replace('"document"', '"passage"').replace("| first }}<", "| join }}<"))
    assert "roles must alternate" in refusal(folder, '{{ raise_exception("roles must alternate") }}')
    assert "cannot render a query and a document" in refusal(folder, "{% for %}")


def test_the_task_may_be_a_prompt(folder: Path) -> None:
    """sentence-transformers passes a prompt to the template as the system message, not the template's default."""
    library = {"prompts": {"web": TASK}, "default_prompt_name": "web"}
    write_json(folder / "config_sentence_transformers.json", library)
    write_template(folder, TEMPLATE.replace(TASK, "find the honey"))
    load_model(str(folder))
    (folder / "config_sentence_transformers.json").unlink()
    assert "that has 'find the honey" in refusal(folder, TEMPLATE.replace(TASK, "find the honey"))


def test_the_task_may_be_another(folder: Path) -> None:
    """The default prompt of a model that was trained for another task is its instruction; a request's replaces it."""
    library = {"prompts": {"mine": "find the honey"}, "default_prompt_name": "mine"}
    edit_json(folder / "config_sentence_transformers.json", library)
    write_template(folder, TEMPLATE)
    theirs = CrossEncoder(str(folder), device="cpu")
    pairs = [(QUERY, document) for document in DOCUMENTS]

    for instruction in ("", TASK):
        expected = theirs.predict(pairs, prompt=instruction or None, activation_fn=torch.nn.Identity())
        assert scores(folder, instruction) == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "given", [TEMPLATE, [{"name": "default", "template": TEMPLATE}, {"name": "x", "template": "y"}]]
)
def test_templates_of_earlier_versions(folder: Path, given: object) -> None:
    """Earlier versions save templates in tokenizer_config.json, where several of them have names."""
    edit_json(folder / "tokenizer_config.json", {"chat_template": given})
    load_model(str(folder))
    edit_json(folder / "tokenizer_config.json", {"chat_template": TEMPLATE.replace("Judge", "Guess")})
    assert_refused(folder, "that has 'Guess")


def test_without_modules_a_template_is_ignored(folder: Path) -> None:
    """The folders of Qwen3-Reranker have a template for chats alone; the code of its authors has the prompt."""
    (folder / "modules.json").unlink()
    write_template(folder, "{{ messages[0].content }}")
    load_model(str(folder))


def test_a_prompt_that_the_library_leaves_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning tells whoever fine-tuned a decoder without a prompt why it ranks badly."""
    load_model(str(folder))
    [warning] = caplog.messages
    assert "without a prompt; bandrank gives it the prompt of the published qwen3" in warning
    caplog.clear()
    write_template(folder, TEMPLATE)
    load_model(str(folder))
    assert not caplog.messages


def test_a_decoder_of_which_nobody_knows_how_it_is_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A chat model has the same files as a re-ranker, so that only its name tells. A fine-tuned model may have a
    published name in its own.
    """
    theirs = tiny_decoder(Qwen3ForCausalLM, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"])
    for name in ("Qwen3-Reranker-0.6B", "qwen3-reranker-4b-medical"):
        load_model(str(save_decoder(tmp_path / name, theirs)))
    assert not caplog.messages
    load_model(str(save_decoder(tmp_path / "Qwen3-0.6B", theirs)))
    [warning] = caplog.messages
    assert "which prompt it was trained with; bandrank gives it that of the published qwen3" in warning


def test_a_classifier_ignores_the_template(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """sentence-transformers gives no messages to a classifier, so that its template may say anything."""
    theirs = tiny_decoder(Qwen3ForSequenceClassification, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"], num_labels=1)
    folder = save_decoder(tmp_path, theirs)
    write_modules(folder, {"": KINDS[0]})
    expected = scores(folder)
    write_template(folder, "{{ messages[0].content }}")
    assert scores(folder) == expected
    assert len(caplog.messages) == 2


def test_a_classifier_that_is_given_messages(tmp_path: Path) -> None:
    """sentence-transformers 6 saves a decoder with a template like this, and reads pairs by the template alone."""
    theirs = tiny_decoder(Qwen3ForSequenceClassification, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"], num_labels=1)
    folder = save_decoder(tmp_path, theirs)
    write_modules(folder, {"": KINDS[0]})
    write_json(folder / "sentence_bert_config.json", {"modality_config": {"text": {}, "message": {}}})

    assert "that has 'Guess" in refusal(folder, TEMPLATE.replace("Judge", "Guess"))


def test_an_embedding_model_that_is_given_messages_is_refused(tmp_path: Path) -> None:
    """sentence-transformers saves an embedding model of such a decoder so that each text is put into the template."""
    start = save_decoder(tmp_path / "start", tiny_decoder(Qwen3Model, PUBLISHED["Qwen/Qwen3-Reranker-0.6B"]))
    write_template(start, "<|im_start|>{{ messages[0].content }}")
    saved = str(tmp_path / "saved")
    SentenceTransformer(modules=[Transformer(str(start)), Pooling(64, "lasttoken")], device="cpu").save(saved)
    with pytest.raises(BadCheckpoint, match="texts that are put into a chat template"):
        load_model(saved)
