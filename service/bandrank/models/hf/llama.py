"""Llama without its causal mask, as NVIDIA saves it (`model_type` llama_bidirec) with its own code, which is not run;
Llama, Mistral and Ministral 3 with it or without, as transformers saves them.

The computation and the prompt follow llama_bidirectional_model.py of nvidia/llama-nemotron-rerank-1b-v2,
nemotron_rerank_v2.py of NVIDIA/NeMo-Retriever, and nemotron-rerank.jinja of vllm-project/vllm. A re-ranker reads one
text, tokenised as a whole behind the token that begins a text; its score is a product with the mean of all last states,
including those of the prompt's words.

Here the text is tokenised in two parts, of which the second begins with the colon before the candidate. The ids are the
same, because Llama 3's tokenizer splits a text between a letter and a colon before it looks for pieces; a colon and the
word behind it, though, may be one piece. Passages of a candidate after the first follow the prompt without the colon.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from bandrank.models.architectures.sequence_cross_encoder import SequenceCrossEncoder, SequenceCrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.encoders.llama import LlamaConfig, MistralConfig
from bandrank.models.hf import qwen
from bandrank.models.hf.chat_template import puts_into_messages, require_words
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Family, Model
from bandrank.models.hf.prompts import require_no_prompt
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS, read_sizes
from bandrank.models.hf.rotary import LENGTH, read_rotary, read_saved
from bandrank.models.hf.settings import require_plain
from bandrank.models.scorer import Scorer
from bandrank.models.wording import Wording

PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "is_causal": False}
DEFAULTS = {"rope_theta": 10_000.0, "pooling": "avg", "temperature": 1.0}  # of the library, and of NVIDIA's code
PARTS = qwen.PARTS | {"qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}
POOLINGS: Mapping[str, Literal["cls", "last", "mean"]] = {"avg": "mean", "cls": "cls", "last": "last"}
WINDOW = 4096  # the library's default
QUERY, CANDIDATE = Wording("question:{text} \n \n passage"), Wording(":{text}")


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings."""
    return LlamaConfig(**read_fields(settings, weights, "Llama"))


def read_saved_by_library(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The shape of a decoder, or, with `is_causal` false, of an encoder. No text is longer than a sliding window, in
    which a token sees all others, or than the texts behind whose length Ministral 3 scales queries up.

    Raises ValueError for missing or unsupported settings.
    """
    name, causal = settings["model_type"].title(), settings.get("is_causal", True)
    if name == "Ministral3":
        from transformers import Ministral3Config  # noqa: PLC0415  # the first of version 5 may have none

        settings = read_saved(Ministral3Config.from_dict, settings).to_dict()
    fields = read_fields(settings | {"is_causal": False}, weights, name)
    if not causal and settings.get("auto_map"):
        raise ValueError(f"a {name} with code of its own, which is not run, and is_causal false is not supported")
    limits = (
        settings.get("sliding_window", WINDOW if name == "Mistral" else None),
        settings["rope_parameters"].get(LENGTH) if name == "Ministral3" else None,
    )
    fields["max_positions"] = min(filter(None, [fields["max_positions"], *limits]))
    kind = DecoderConfig if causal else LlamaConfig if name == "Llama" else MistralConfig
    return kind(**fields)


def saved_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The decoder's or encoder's tensors under our names. Raises the errors of `layer_weights`."""
    return (qwen.decoder_weights if config.causal else encoder_weights)(weights, config)


def read_fields(settings: dict[str, Any], weights: Weights, name: str) -> dict[str, Any]:
    """The fields of a config of Llama's shape. Raises ValueError for missing or unsupported settings."""
    classes = [str(each).rpartition(".")[2] for each in (settings.get("auto_map") or {}).values()]
    if other := [each for each in classes if name.lower() not in each.lower()]:
        raise ValueError(f"a {name} with code of its own ({', '.join(other)}), which is not run, is not supported")
    require_plain(settings, PLAIN, name)
    sizes = read_sizes(settings, weights)
    sizes["max_positions"] = min(sizes["max_positions"], MAX_DECODER_TOKENS)
    return sizes | {"rotary": read_rotary(DEFAULTS | settings, sizes["head_size"])}


def encoder_weights(
    weights: Weights, config: EncoderConfig, parts: Mapping[str, str | tuple[str, ...]] = PARTS
) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    last = config.num_layers - 1
    translated = {
        "encoder.embeddings.word.weight": weights["embed_tokens.weight"],
        f"encoder.layers.{last}.final_norm.weight": weights["norm.weight"],
    }
    return translated | layer_weights(weights, config, LayerNames("layers", parts))


def read_reranker(model: Model) -> Scorer:
    """The re-ranker of a folder. Raises BadCheckpoint, and KeyError for a missing tensor."""
    if model.headless:
        raise model.refuse(
            "a Llama without a score head cannot re-rank; an embedding model needs the modules.json of "
            "sentence-transformers, which newer revisions have"
        )
    settings = DEFAULTS | model.settings
    pooling, temperature = str(settings["pooling"]), settings["temperature"]
    if pooling not in POOLINGS:
        raise model.refuse(f"pooling {pooling!r} is not supported, only {', '.join(POOLINGS)}")
    if not isinstance(temperature, int | float) or not temperature > 0:
        raise model.refuse(f"temperature must be a number above 0, got {temperature!r}")
    tokens = model.ids()
    require_no_prompt(model)
    if in_messages := puts_into_messages(model.folder):
        require_words(model, _text)
    max_tokens = most_tokens(model, model.encoder.max_positions, in_messages=in_messages)
    config = SequenceCrossEncoderConfig(
        **tokens,
        encoder=model.encoder,
        pooling=POOLINGS[pooling],
        max_tokens=max_tokens,
        max_query_tokens=max_tokens // 2,
        between=(),
        query_wording=QUERY,
        candidate_wording=CANDIDATE,
    )
    head = {name: tensor / temperature for name, tensor in model.head_weights.items()}
    return model.assemble(SequenceCrossEncoder, config, head)


def _text(query: str, candidate: str) -> str:
    """The whole text of a pair."""
    before, after = QUERY.around()
    between, _ = CANDIDATE.around()
    return before + query + after + between + candidate


SAVED_LLAMA = replace(qwen.QWEN, read_config=read_saved_by_library, encoder_weights=saved_weights)
LLAMA = Family(
    prefixes=("model.",),
    tokens={},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head={"classifier.weight": "score.weight"},
    read_reranker=read_reranker,
)
