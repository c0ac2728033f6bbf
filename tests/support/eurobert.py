"""Folders of tiny EuroBERTs and UltraBERTs, and of other models with a tokenizer like Llama 3's."""

from pathlib import Path
from typing import Any

from support.decoders import drawn
from support.grouped import BEGIN, SIZES, llama_tokenizer
from support.models import write_bi_encoder, write_json
from tokenizers import Tokenizer, processors
from transformers import PreTrainedModel

CLOSE = 1e-5  # float32 through three layers, of scores about 1
END, MASK = "<|end_of_text|>", "<|mask|>"
LIKE_LLAMA = f"{BEGIN} $A", f"{BEGIN} $A {BEGIN}:1 $B:1"  # the templates of Llama 3's tokenizer, for a text and a pair
LIKE_BERT = f"{BEGIN} $A {END}", f"{BEGIN} $A {END} $B {END}"
SETTINGS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "num_labels": 1}


def tiny(kind: Any, **more: Any) -> Any:
    """A random model of a class of `transformers`, in eval mode. more: fields of its config."""
    return drawn(kind(kind.config_class(**SETTINGS | SIZES | more)))


def save_like_llama(folder: Path, model: PreTrainedModel, templates: tuple[str, str] = LIKE_LLAMA) -> Path:
    """Writes a folder with a tokenizer that has these templates for a text and for a pair."""
    model.save_pretrained(folder)
    tokenizer = Tokenizer.from_str(llama_tokenizer().to_str())
    tokenizer.add_special_tokens([MASK])
    tokenizer.post_processor = processors.TemplateProcessing(*templates, [(BEGIN, 0), (END, 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    spelled = {"bos_token": BEGIN, "eos_token": END, "pad_token": END, "mask_token": MASK}
    write_json(folder / "tokenizer_config.json", spelled | {"tokenizer_class": "TokenizersBackend"})
    return folder


def save_embedder(folder: Path, model: PreTrainedModel, pooling: str, templates: tuple[str, str] = LIKE_LLAMA) -> Path:
    """Writes the folder of a bi-encoder with prompts, like jinaai/jina-embeddings-v5-text-nano-retrieval."""
    save_like_llama(folder, model, templates)
    prompts, settings = {"query": "Query: ", "document": "Document: "}, {"embedding_dimension": SIZES["hidden_size"]}
    write_bi_encoder(folder, settings | {"pooling_mode": pooling}, prompts=prompts, similarity_fn_name="cosine")
    return folder
