"""Folders of decoders: how their weights are read, what is refused, and decoders as bi-encoders."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from support.decoders import KINDS, PUBLISHED, gemma_tokenizer, save_decoder, tiny_decoder
from support.models import (
    as_served,
    change_weights,
    edit_json,
    tiny_encoder_config,
    write_bi_encoder,
    write_json,
    write_modules,
)
from support.refusals import assert_refused
from support.text_scores import scores_of_texts
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    GemmaForCausalLM,
    GemmaModel,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
)

from bandrank.models.architectures import BiEncoder, DecoderReranker
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.hf.decoder_reranker import TASK
from bandrank.models.loading import load_model
from bandrank.models.quantised import linear_layers

UNTIED, TIED = "Qwen/Qwen3-Reranker-8B", "Qwen/Qwen3-Reranker-0.6B"
GEMMA = "BAAI/bge-reranker-v2-gemma"
CLOSE = 1e-5
PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def test_of_the_output_matrix_two_rows_are_kept(tmp_path: Path) -> None:
    """The scorer keeps the difference of the rows of "yes" and "no"; only its embeddings have a row for each token."""
    theirs = tiny_decoder(Qwen3ForCausalLM, PUBLISHED[UNTIED])
    model = load_model(str(save_decoder(tmp_path, theirs)))
    yes, no = (model.tokenizer.token_to_id(token) for token in ("yes", "no"))
    matrix = theirs.lm_head.weight.detach()

    weights = model.scorer.state_dict()

    assert [name for name, tensor in weights.items() if tensor.shape[0] == len(matrix)] == ["encoder.word.weight"]
    assert torch.equal(weights["head.classifier.weight"], matrix[yes : yes + 1] - matrix[no : no + 1])


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="there is no other layout of weights")
def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    """Weights that are laid out for a CPU replace the original ones, unless representations are stored under their
    fingerprint.
    """
    re_ranker = load_model(str(save_decoder(tmp_path / "a", tiny_decoder(Qwen3ForCausalLM, PUBLISHED[TIED]))))
    embedder = load_model(str(embedding_folder(tmp_path / "b", tiny_decoder(Qwen3Model, PUBLISHED[TIED]))))
    before = re_ranker.scorer.facts(str, str)

    for model, once in ((re_ranker, True), (embedder, False)):
        layers = linear_layers(as_served(model.scorer)).values()
        assert {layer.weight.is_meta for layer in layers} == {once}

    assert re_ranker.scorer.facts(str, str) == before


@pytest.mark.parametrize(("kind", "published"), [(Qwen3ForCausalLM, TIED), (GemmaForCausalLM, GEMMA)])
def test_the_tokens_may_be_named(kind: Any, published: str, tmp_path: Path) -> None:
    """The folder's LogitScore module names one token or two, also for a Gemma, whose own token is known."""
    theirs = tiny_decoder(kind, PUBLISHED[published])
    folder = save_decoder(tmp_path, theirs)
    write_json(folder / "modules.json", [{"type": f"sentence_transformers.{kind}"} for kind in KINDS])
    (folder / "1_LogitScore").mkdir()
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 300, "false_token_id": 200})
    matrix = theirs.get_input_embeddings().weight.detach()

    weights = load_model(str(folder)).scorer.state_dict()

    assert torch.equal(weights["head.classifier.weight"], matrix[300:301] - matrix[200:201])
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 300, "false_token_id": None})
    assert torch.equal(load_model(str(folder)).scorer.state_dict()["head.classifier.weight"], matrix[300:301])
    for wrong, named in (({"false_token_id": 200}, "None and 200"), ({"true_token_id": 600}, "600")):
        write_json(folder / "1_LogitScore" / "config.json", wrong)
        assert_refused(folder, f"must be the logit of a token, or of two, not of {named}")
    (folder / "1_LogitScore").rename(folder / "score")
    assert_refused(folder, r"1_LogitScore.*config\.json")
    write_json(folder / "score" / "config.json", {"true_token_id": 301, "false_token_id": 200})
    write_modules(folder, dict(zip(["", "score"], KINDS, strict=True)))
    weights = load_model(str(folder)).scorer.state_dict()
    assert torch.equal(weights["head.classifier.weight"], matrix[301:302] - matrix[200:201])


def test_a_prompt_of_its_own_is_refused(tmp_path: Path) -> None:
    """The folder's prompt would be the instruction of requests that bring none. The published one is in ours anyway."""
    folder = save_decoder(tmp_path, tiny_decoder(Qwen3ForCausalLM, PUBLISHED[TIED]))
    library = {"prompts": {"web": TASK, "mine": "find the honey"}, "default_prompt_name": "web"}
    write_json(folder / "config_sentence_transformers.json", library)
    load_model(str(folder))
    write_json(folder / "config_sentence_transformers.json", library | {"default_prompt_name": "mine"})
    assert_refused(folder, "a re-ranker with the default prompt 'find the honey'")
    (folder / "config_sentence_transformers.json").unlink()
    assert_refused(folder, "a decoder whose tokens see all others", {"is_causal": False})


@pytest.mark.parametrize("pickled", [False, True])
def test_weights_in_several_files(tmp_path: Path, pickled: bool) -> None:
    """Large models are saved in parts, which torch pickled before there were safetensors; a missing part is named."""
    theirs = tiny_decoder(Qwen3ForCausalLM, PUBLISHED[UNTIED])
    whole = load_model(str(save_decoder(tmp_path / "whole", theirs)))
    folder = save_decoder(tmp_path / "parts", theirs, max_shard_size="500KB")
    parts = sorted(folder.glob("model-*.safetensors"))
    if pickled:
        parts = [pickle_part(part) for part in parts]
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        files = {name: pickled_name(Path(part)) for name, part in index["weight_map"].items()}
        write_json(folder / "pytorch_model.bin.index.json", index | {"weight_map": files})
        (folder / "model.safetensors.index.json").unlink()

    weights = load_model(str(folder)).scorer.state_dict()

    assert len(parts) > 2
    assert all(torch.equal(tensor, weights[name]) for name, tensor in whole.scorer.state_dict().items())
    parts[1].unlink()
    assert_refused(folder, f"{parts[1].name}: missing or damaged")


def pickle_part(part: Path) -> Path:
    """Replaces a file of safetensors by one that torch saves, and returns its path."""
    pickled = part.with_name(pickled_name(part))
    torch.save(load_file(part), pickled)
    part.unlink()
    return pickled


def pickled_name(part: Path) -> str:
    """The name that transformers gives to a file of weights that torch saves."""
    return f"pytorch_{part.stem}.bin"


@pytest.mark.parametrize(("kind", "published"), [(Qwen3ForCausalLM, UNTIED), (GemmaForCausalLM, GEMMA)])
def test_whether_the_output_matrix_is_the_embeddings(kind: Any, published: str, tmp_path: Path) -> None:
    """Without the key, which transformers 4 leaves out for Gemma, the default counts; a saved matrix always does."""
    theirs = tiny_decoder(kind, PUBLISHED[published])
    folder = save_decoder(tmp_path, theirs)
    said = load_model(str(folder)).scorer.state_dict()["head.classifier.weight"]
    edit_json(folder / "config.json", {}, remove=("tie_word_embeddings",))
    assert AutoConfig.from_pretrained(folder).tie_word_embeddings == PUBLISHED[published]["tie_word_embeddings"]
    assert torch.equal(load_model(str(folder)).scorer.state_dict()["head.classifier.weight"], said)

    edit_json(folder / "config.json", {"tie_word_embeddings": True})
    assert torch.equal(kind.from_pretrained(folder).lm_head.weight, theirs.lm_head.weight)
    assert torch.equal(load_model(str(folder)).scorer.state_dict()["head.classifier.weight"], said)


@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh"])
def test_gemma_has_the_tanh_form_of_gelu(tmp_path: Path, activation: str) -> None:
    """The config.json of the first releases says gelu, but the model computes the tanh form."""
    folder = save_decoder(tmp_path, tiny_decoder(GemmaForCausalLM, PUBLISHED[GEMMA]))
    edit_json(folder / "config.json", {"hidden_act": activation})
    theirs = AutoConfig.from_pretrained(folder)
    assert theirs.hidden_act == "gelu_pytorch_tanh"

    encoder = load_model(str(folder)).scorer.config.encoder

    assert isinstance(encoder, DecoderConfig)
    assert encoder.activation == "geglu_tanh"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "silu"}, "activation 'silu' is not supported, only gelu_pytorch_tanh"),
        ({"attention_bias": True}, "a Gemma with {'attention_bias': True} is not supported"),
        ({"use_bidirectional_attention": True}, "a Gemma with {'use_bidirectional_attention': True}"),
        ({"is_causal": False}, "a decoder whose tokens see all others"),
    ],
)
def test_another_gemma_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(save_decoder(tmp_path, tiny_decoder(GemmaForCausalLM, PUBLISHED[GEMMA])), message, settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"use_sliding_window": True}, "within a sliding window is not supported"),
        (
            {"rope_parameters": {"rope_type": "longrope", "factor": 4.0}},
            "rotary positions of .*'longrope'.* are not supported",
        ),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "factor of rotary positions must be a number"),
        # Qwen's model cards add this for longer texts, here to a file that transformers 5 has saved.
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
            "rotary positions of .*'longrope'.* are not supported",
        ),
        ({"attention_bias": True}, "attention with a bias is not supported in qwen3"),
        ({"num_key_value_heads": None}, "config.json has no number for num_key_value_heads"),
        ({"num_hidden_layers": 1}, "config.json names 1 layers, the weights have 2"),
        ({"num_hidden_layers": 3}, "the weights have no tensor 'layers.2"),
        ({"max_position_embeddings": 40}, "max_tokens 40 must hold the prompt"),
    ],
)
def test_what_would_score_otherwise_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    assert_refused(save_decoder(tmp_path, tiny_decoder(Qwen3ForCausalLM, PUBLISHED[TIED])), message, settings)


def test_the_base_of_rotary_positions_is_the_one_that_the_library_takes(tmp_path: Path) -> None:
    """This config.json has the base twice, as transformers 5 and as earlier versions write it."""
    folder = save_decoder(tmp_path, tiny_decoder(Qwen3ForCausalLM, PUBLISHED[TIED]))
    edit_json(folder / "config.json", {"rope_theta": 10_000.0})
    expected = AutoConfig.from_pretrained(folder).rope_parameters["rope_theta"]

    encoder = load_model(str(folder)).scorer.config.encoder

    assert isinstance(encoder, DecoderConfig)
    assert encoder.rotary.base == expected == 1_000_000.0


def test_an_embedding_model_is_no_reranker(tmp_path: Path) -> None:
    """Without modules.json, an embedding model's config.json is a re-ranker's; only its tensors have other names."""
    folder = save_decoder(tmp_path / "bare", tiny_decoder(Qwen3Model, PUBLISHED[TIED]))
    assert_refused(folder, "without an output matrix cannot re-rank")
    folder = save_decoder(tmp_path / "untied", tiny_decoder(Qwen3ForCausalLM, PUBLISHED[UNTIED]))
    change_weights(folder, lambda weights: {name: each for name, each in weights.items() if name != "lm_head.weight"})
    assert_refused(folder, "without an output matrix cannot re-rank")


@pytest.mark.parametrize("labels", [None, {0: "yes", 1: "no"}, {0: "0", 1: "1"}, {0: "no", 1: "yes", 2: "perhaps"}])
def test_a_classifier_of_several_labels_is_refused(tmp_path: Path, labels: dict[int, str] | None) -> None:
    """Such labels do not say, in the words of the prompt, that the second of two means relevance."""
    more: dict[str, Any] = {"id2label": labels} if labels else {"num_labels": 2}
    theirs = tiny_decoder(Qwen3ForSequenceClassification, PUBLISHED[TIED], **more)
    assert_refused(
        save_decoder(tmp_path, theirs), f"classifier with one output, but this model has {len(labels or 'ab')}"
    )


def embedding_folder(folder: Path, model: Any) -> Path:
    """Saves a folder like that of Qwen/Qwen3-Embedding-0.6B."""
    save_decoder(folder, model, end=True)
    pooling, prompts = {"pooling_mode_lasttoken": True}, {"query": PROMPT, "document": ""}
    write_bi_encoder(folder, pooling, prompts=prompts, similarity_fn_name="cosine")
    return folder


@pytest.mark.parametrize("instruction", ["", "Find the opposite."])
def test_a_decoder_as_bi_encoder(tmp_path: Path, instruction: str) -> None:
    """As in Qwen/Qwen3-Embedding-0.6B, scores are cosines of the states of <|endoftext|> behind each text, whether or
    not the pooling includes the prompt.
    """
    theirs = tiny_decoder(Qwen3Model, PUBLISHED[TIED])
    folder = embedding_folder(tmp_path, theirs)
    edit_json(folder / "1_Pooling" / "config.json", {"include_prompt": not instruction})
    model = load_model(str(folder))
    as_served(model.scorer)
    query, texts = "where do bees live?", ["In hives.", "", "bees " * 300, "?"]

    def vector(text: str) -> torch.Tensor:
        ids = model.tokenizer.encode(text, add_special_tokens=True).ids
        with torch.inference_mode():
            state: torch.Tensor = theirs(torch.tensor([ids])).last_hidden_state[0, -1]
        return state / state.norm()

    asked = vector((PROMPT if not instruction else f"Instruct: {instruction}\nQuery:") + query)

    scores = scores_of_texts(model, query, texts, instruction)

    assert scores == pytest.approx([float(asked @ vector(text)) for text in texts], abs=CLOSE)
    assert isinstance(model.scorer, BiEncoder)
    assert "query_wording" not in model.scorer.candidate_side().config
    assert model.scorer.precomputes


@pytest.mark.parametrize("template", ["<bos> $A", "<bos> $A <eos>", "$A <eos>", "$A"])
def test_tokens_around_the_texts_of_an_embedding_model(template: str, tmp_path: Path) -> None:
    """The tokenizer's template says which tokens stand around a text: Gemma's puts one before it."""
    theirs = tiny_decoder(GemmaModel, PUBLISHED[GEMMA])
    folder = embedding_folder(tmp_path, theirs)
    write_json(folder / "1_Pooling" / "config.json", {"embedding_dimension": 128, "pooling_mode": "mean"})
    (folder / "config_sentence_transformers.json").unlink()
    tokenizer = gemma_tokenizer()
    special = [(token, tokenizer.token_to_id(token)) for token in ("<bos>", "<eos>")]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend", "pad_token": "<pad>"})
    query, texts = "where do bees live?", ["In hives.", "bees " * 30, "?"]
    library = SentenceTransformer(str(folder), device="cpu")

    scores = scores_of_texts(load_model(str(folder)), query, texts)

    expected = library.encode(texts) @ library.encode(query)
    assert scores == pytest.approx(expected.tolist(), abs=CLOSE)


def test_an_embedding_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A prompt must be a text, and the tokenizer may add at most one token before a text and one behind it."""
    folder = embedding_folder(tmp_path, tiny_decoder(Qwen3Model, PUBLISHED[TIED]))
    edit_json(folder / "config_sentence_transformers.json", {"prompts": {"query": 7}})
    assert_refused(folder, "the prompt 'query' must be a text, got 7")
    edit_json(folder / "config_sentence_transformers.json", {"prompts": None})
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"]["single"] *= 2
    write_json(folder / "tokenizer.json", tokenizer)
    assert_refused(folder, r"the tokenizer puts the tokens \[\d+, \d+\] around a text")


def test_an_embedding_model_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    """In such models, as Alibaba-NLP/gte-Qwen1.5-7B-instruct and voyageai/voyage-4-nano, a token also sees those behind
    it, which config.json need not say.
    """
    assert_refused(
        embedding_folder(tmp_path, tiny_decoder(Qwen3Model, PUBLISHED[TIED])),
        r"code of its own \(modeling_qwen.Qwen2Model\), which is not run",
        {"auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}},
    )


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    """A decoder as re-ranker has causal attention and a prompt that ends with tokens of its own."""
    model = load_model(str(save_decoder(tmp_path / "theirs", tiny_decoder(Qwen3ForCausalLM, PUBLISHED[TIED]))))
    assert isinstance(model.scorer, DecoderReranker)
    with pytest.raises(ValueError, match="the encoder must be a decoder, got 'bert'"):
        replace(model.scorer.config, encoder=tiny_encoder_config())
    with pytest.raises(ValueError, match="a prompt needs a tail"):
        replace(model.scorer.config.prompt, tail=())
