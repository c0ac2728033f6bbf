"""Tiny Llamas, Gemma 3s and EmbeddingGemma 2s: ours, and folders as NVIDIA and Google publish them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.decoders import PARTS, WORDS, drawn, gemma_tokenizer
from support.models import INTERMEDIATE_SIZE, random_scorer, randomise, write_json
from support.tokenizer import CLS_ID, SEP_ID, vocab_size
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    EmbeddingGemma2Config,
    EmbeddingGemma2Model,
    EmbeddingGemma2TextConfig,
    EmbeddingGemma2TextModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
)

from bandrank.models.architectures import BiEncoder, SequenceCrossEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.sequence_cross_encoder import SequenceCrossEncoderConfig
from bandrank.models.encoders.embedding_gemma2 import EmbeddingGemma2Config as OurEmbeddingGemma2Config
from bandrank.models.encoders.gemma3 import Gemma3Config
from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.encoders.llama import LlamaConfig as OurLlamaConfig
from bandrank.models.layers.positions import SlowRotary
from bandrank.models.wording import Wording

BEGIN = "<|begin_of_text|>"
SIZES = {  # published: 16 layers of 2,048, with 32 query heads over 8 key heads of 64
    "vocab_size": 520,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
# The other fields of config.json of nvidia/llama-3.2-nv-embedqa-1b-v2 and of NVIDIA's re-rankers.
LLAMA: dict[str, Any] = {
    "attention_bias": False,
    "auto_map": {"AutoConfig": "llama_bidirectional_model.LlamaBidirectionalConfig"},
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "mlp_bias": False,
    "model_type": "llama_bidirec",
    "pooling": "avg",
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500_000.0,
    "temperature": 0.5,
    "tie_word_embeddings": True,
}
LOCAL, GLOBAL = "sliding_attention", "full_attention"
GEMMA3: dict[str, Any] = {  # of google/embeddinggemma-300m, with layers in another order and a window of 16, not 512
    "layer_types": [LOCAL, GLOBAL, LOCAL],
    "sliding_window": 16,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-6,
    "use_bidirectional_attention": True,
}
# Of google/embeddinggemma-2, with fewer layers and narrower ones.
EMBEDDING_GEMMA2: dict[str, Any] = {
    "layer_types": [LOCAL, LOCAL, GLOBAL],
    "sliding_window": 8,
    "hidden_size_per_layer_input": 32,
    "embedding_dim": 48,
    "per_layer_config": {2: {"head_dim": 32, "num_key_value_heads": 1}},
}
IMAGE_ID = 300  # of a token that stands for an image


@cache
def llama_tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer like Llama 3's: `BEGIN` precedes a text, and a colon may join the word after it."""
    tokenizer = Tokenizer(models.BPE())
    parts = Regex(PARTS.replace(r"|\p{N}|", r"|\p{N}{1,3}|"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(parts, "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BEGIN, "<|end_of_text|>"],
        show_progress=False,
    )
    prompts = ["question:how do bees \n \n passage:By", "question:bees \n \n passage:bees"] * 5
    tokenizer.train_from_iterator([WORDS, *WORDS.split(), *prompts], trainer)
    template = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def tiny_llama(**more: Any) -> LlamaModel:
    """A random causal Llama of `transformers`, in eval mode. more: fields that differ from the published ones."""
    settings = LLAMA | SIZES | more
    of_nvidia = ("auto_map", "model_type", "pooling", "temperature")
    return drawn(LlamaModel(LlamaConfig(**{name: each for name, each in settings.items() if name not in of_nvidia})))  # type: ignore[no-any-return]


def tiny_gemma3(**more: Any) -> Gemma3TextModel:
    """A random Gemma 3 of `transformers`, in eval mode. more: fields that differ from the published ones."""
    return drawn(Gemma3TextModel(Gemma3TextConfig(**GEMMA3 | SIZES | more)))  # type: ignore[no-any-return]


def tiny_embedding_gemma2(**more: Any) -> EmbeddingGemma2TextModel:
    """A random text model of `transformers`, in eval mode. more: of the published settings."""
    return _drawn(EmbeddingGemma2TextModel(EmbeddingGemma2TextConfig(**SIZES | EMBEDDING_GEMMA2 | more)))


def tiny_multimodal_gemma2() -> EmbeddingGemma2Model:
    """The same with encoders of images and sounds."""
    audio = {"hidden_size": 16, "num_hidden_layers": 1}
    towers: dict[str, Any] = {"audio_config": audio, "vision_config": audio | {"position_embedding_size": 1}}
    config = EmbeddingGemma2Config(text_config=SIZES | EMBEDDING_GEMMA2, image_token_id=IMAGE_ID, **towers)
    return _drawn(EmbeddingGemma2Model(config))


def _drawn(model: Any) -> Any:
    for layer in getattr(model, "language_model", model).layers:
        layer.layer_scalar.fill_(0.5 + layer.layer_idx)
    return drawn(model)


def states_without_mask(model: PreTrainedModel, ids: Sequence[int]) -> Tensor:
    """The last states of a text whose tokens all see each other, (len, hidden_size)."""
    mask = torch.zeros(1, 1, len(ids), len(ids))
    with torch.inference_mode():
        states: Tensor = model(torch.tensor([[*ids]]), attention_mask=mask).last_hidden_state
    return states[0]


def score_vector(*, outputs: int = 1) -> Tensor:
    """Random weights of a re-ranker's head, (outputs, hidden_size)."""
    head = nn.Linear(SIZES["hidden_size"], outputs, bias=False)
    randomise(head, seed=2)
    return head.weight.detach()


def save_llama(folder: Path, model: LlamaModel, score: Tensor | None = None, **more: Any) -> Path:
    """Writes a folder as NVIDIA's code does. score: the weights of a re-ranker's head.  more: fields of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "" if score is None else "model."
    weights = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(weights | ({} if score is None else {"score.weight": score}), folder / "model.safetensors")
    write_json(folder / "config.json", LLAMA | SIZES | more)
    llama_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN})
    return folder


def bounded_gemma_tokenizer() -> Tokenizer:
    """Gemma's tokenizer with <bos> before a text and <eos> after it, as in EmbeddingGemma."""
    tokenizer = Tokenizer.from_str(gemma_tokenizer().to_str())
    special = [(token, tokenizer.token_to_id(token)) for token in ("<bos>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    return tokenizer


# Our side, with the tiny word pieces that all architectures share


def shape(num_layers: int) -> dict[str, Any]:
    """The fields of a tiny `GroupedConfig`: two query heads over one key head, each of size 16."""
    return {
        "vocab_size": vocab_size(),
        "hidden_size": 32,
        "num_layers": num_layers,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_size": 16,
        "intermediate_size": INTERMEDIATE_SIZE,
        "max_positions": 512,
    }


def tiny_llama_config(*, kind: type[OurLlamaConfig] = OurLlamaConfig) -> GroupedConfig:
    """Our config of a tiny Llama, with Llama 3's rotary positions."""
    return kind(**shape(2), rotary=SlowRotary(500_000.0, 32.0, trained=8192))


def tiny_gemma3_config(*, num_layers: int = 3) -> GroupedConfig:
    """Our config of a tiny Gemma 3 whose second layer is global; in the others a token sees 8 on each side."""
    return Gemma3Config(**shape(num_layers), windows=tuple(None if index == 1 else 8 for index in range(num_layers)))


def tiny_embedding_gemma2_config(*, num_layers: int = 3) -> GroupedConfig:
    """One of our own, whose second layer is global, with heads twice as wide; the others see 8 on each side."""
    windows = tuple(None if index == 1 else 8 for index in range(num_layers))
    heads = tuple((1, 16) if window else (2, 32) for window in windows)
    sizes = shape(num_layers) | {"num_kv_heads": 2, "head_size": 32}
    return OurEmbeddingGemma2Config(**sizes, windows=windows, heads=heads, mixed_size=16)


def tiny_llama_reranker(**more: Any) -> SequenceCrossEncoder:
    """A random re-ranker in eval mode, not yet prepared. more: fields of its config."""
    words = {"query_wording": Wording("who is {text} of"), "candidate_wording": Wording("it {text}")}
    limits = {"max_tokens": 64, "max_query_tokens": 26}
    fields = {"cls_id": CLS_ID, "sep_id": None, "between": (), "pooling": "mean"} | words | limits
    config = SequenceCrossEncoderConfig(encoder=tiny_llama_config(), **fields | more)  # type: ignore[arg-type]  # of several types
    return random_scorer(SequenceCrossEncoder(config), 0)


def tiny_gemma3_bi_encoder(*, encoder: GroupedConfig | None = None) -> BiEncoder:
    """A random bi-encoder with mean pooling, in eval mode, not yet prepared. encoder: by default a Gemma 3's."""
    encoder = encoder or tiny_gemma3_config()
    return random_scorer(BiEncoder(BiEncoderConfig(encoder, cls_id=CLS_ID, sep_id=SEP_ID, max_tokens=512)), 0)


def tiny_embedding_gemma2_bi_encoder() -> BiEncoder:
    """The same of an EmbeddingGemma 2."""
    return tiny_gemma3_bi_encoder(encoder=tiny_embedding_gemma2_config())
