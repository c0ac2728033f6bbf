"""Tiny random models: Hugging Face folders, and our scorers directly. Seeded, and drawn so that scores differ visibly.

`tiny_*` return objects; `save_*` write a folder as Hugging Face's libraries would and return its path.
"""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from support.tokenizer import CLS_ID, PAD_ID, SEP_ID, SPECIAL, TOKENIZER_FILE, WORDS, vocab_size
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from bandrank.models.architectures import BiEncoder, CrossEncoder
from bandrank.models.architectures.bi_encoder import BiEncoderConfig
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.static import StaticConfig
from bandrank.models.layers.patterns import FULL, sparse
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.arrays import offsets
from bandrank_kernels.windowed_attention import AttentionPattern

AnyScorer = TypeVar("AnyScorer", bound=Scorer)
AnyModel = TypeVar("AnyModel", bound=nn.Module)

HIDDEN_SIZE = 32
NUM_HEADS = 4
INTERMEDIATE_SIZE = 64

# The names by which a sparse cross-encoder's config.json knows the switches of a pattern.
SWITCHES = {
    "cls_query_attention": "cls_to_query",
    "cls_doc_attention": "cls_to_candidate",
    "query_cls_attention": "query_to_cls",
    "query_doc_attention": "query_to_candidate",
    "doc_cls_attention": "candidate_to_cls",
    "doc_query_attention": "candidate_to_query",
}


def random_text(rng: random.Random, num_words: int) -> str:
    """A random text of `num_words` words, each of which is one piece."""
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def random_ids(rng: random.Random, num_pieces: int) -> list[int]:
    """Random token ids of a text as the templates of all tiny cross-encoders make them: pieces and [SEP]."""
    return [*(rng.randrange(len(SPECIAL), vocab_size()) for _ in range(num_pieces)), SEP_ID]


def score_batch(queries: list[list[int]], candidates: list[list[list[int]]]) -> ScoreBatch:
    """A batch from token ids: candidates[q] are those of queries[q]."""
    flat = [candidate for group in candidates for candidate in group]
    return ScoreBatch(
        Ragged.from_token_ids(queries), Ragged.from_token_ids(flat), offsets([len(group) for group in candidates])
    )


def randomise(module: nn.Module, *, seed: int) -> None:
    """Draws all weights, larger than a fresh model's: attention is uneven, and scores differ in the first digit."""
    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: Tensor, std: float, mean: float = 0.0) -> None:
        parameter.detach().normal_(mean, std, generator=generator)

    for part in module.modules():
        if isinstance(part, nn.Linear):
            draw(part.weight, 1.5 * part.in_features**-0.5)
            if part.bias is not None:
                draw(part.bias, 0.1)
        elif isinstance(part, nn.Embedding):
            draw(part.weight, 1.0)
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            draw(part.weight, 0.1, 1.0)
            if getattr(part, "bias", None) is not None:
                draw(part.bias, 0.1)
        else:
            for codes in part.parameters(recurse=False):
                draw(codes, 1.0)


# Hugging Face's side


def tiny_bert_config(*, num_layers: int = 2, positions: int = 512, **more: Any) -> BertConfig:
    """The config of a BERT of hidden size 32 for the tiny tokenizer. more: further fields."""
    return BertConfig(
        vocab_size=vocab_size(),
        hidden_size=HIDDEN_SIZE,
        num_hidden_layers=num_layers,
        num_attention_heads=NUM_HEADS,
        intermediate_size=INTERMEDIATE_SIZE,
        max_position_embeddings=positions,
        pad_token_id=PAD_ID,
        **{"num_labels": 1} | more,
    )


def tiny_hf_cross_encoder(
    *, seed: int = 0, num_layers: int = 2, positions: int = 512, **more: Any
) -> BertForSequenceClassification:
    """A random cross-encoder of the `transformers` library, in eval mode. more: fields of BertConfig."""
    config = tiny_bert_config(num_layers=num_layers, positions=positions, **more)
    return random_scorer(BertForSequenceClassification(config), seed)


def tiny_hf_encoder(*, seed: int = 0, num_layers: int = 2, positions: int = 512, **more: Any) -> BertModel:
    """A random encoder of the `transformers` library, in eval mode. more: fields of BertConfig."""
    return random_scorer(BertModel(tiny_bert_config(num_layers=num_layers, positions=positions, **more)), seed)


def save_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(TOKENIZER_FILE.read_bytes())
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})


def save_cross_encoder(folder: Path, model: BertForSequenceClassification | None = None, **more: Any) -> Path:
    """A full-attention cross-encoder's folder. more: arguments of `tiny_hf_cross_encoder`, if no model is given."""
    (model or tiny_hf_cross_encoder(**more)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_sparse_cross_encoder(
    folder: Path,
    pattern: AttentionPattern | None = None,
    *,
    model: BertForSequenceClassification | None = None,
    **more: Any,
) -> Path:
    """A sparse cross-encoder's folder (default: window 4): plain BERT weights, the pattern in config.json alone."""
    save_cross_encoder(folder, model, **more)
    edit_json(folder / "config.json", sparse_settings(sparse(window=4) if pattern is None else pattern))
    return folder


def sparse_settings(pattern: AttentionPattern) -> dict[str, Any]:
    """What the config.json of a published sparse cross-encoder holds beyond BERT's own keys."""
    switches = {theirs: getattr(pattern, ours) for theirs, ours in SWITCHES.items()}
    return switches | {
        "architectures": ["ListformerModelForSequenceClassification"],
        "attention_window_size": pattern.window,
        "cls_other_cls_attention": False,
        "doc_other_cls_attention": False,
        "depth": 100,
        "token_type_embedding": True,
        "input_type_embedding": False,
        "rank_position_embedding": False,
        "normalize_output": False,
    }


def write_modules(folder: Path, kinds: Mapping[str, str]) -> None:
    """Writes the modules.json of sentence-transformers. kinds: the class of each module there, by its folder."""
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", entries)


def write_template(folder: Path, template: str) -> None:
    """Writes a tokenizer's chat template."""
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_bi_encoder(folder: Path, pooling: Mapping[str, Any], **library: Any) -> None:
    """Makes an encoder's folder one of a bi-encoder that compares cosines of pooled states.

    pooling: the settings of that module.  library: those of sentence-transformers, such as its prompts.
    """
    write_modules(folder, {"": "models.Transformer", "1_Pooling": "models.Pooling", "2_Normalize": "models.Normalize"})
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    if library:
        write_json(folder / "config_sentence_transformers.json", library)


def save_bi_encoder(
    folder: Path,
    model: BertModel | None = None,
    *,
    pooling: str = "mean",
    normalize: bool = True,
    max_seq_length: int | None = 128,
    **more: Any,
) -> Path:
    """A sentence-transformers folder. pooling: "mean", "cls", "max", ...  more: arguments of `tiny_hf_encoder`."""
    (model or tiny_hf_encoder(**more)).save_pretrained(folder)
    save_tokenizer(folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")][: 3 if normalize else 2]
    write_modules(folder, {path: f"models.{name}" for name, path in modules})
    modes = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens"}
    settings = {f"pooling_mode_{mode}": name == pooling for name, mode in modes.items()}
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN_SIZE} | settings)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    return folder


def save_colbert(
    folder: Path,
    model: BertModel | None = None,
    *,
    dim: int = 16,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """A folder as Stanford's library writes it.

    settings: keys of its artifact.metadata that differ from the defaults.  more: arguments of `tiny_hf_encoder`.
    """
    (model or tiny_hf_encoder(**more)).save_pretrained(folder)
    save_tokenizer(folder)
    edit_json(folder / "config.json", {"architectures": ["HF_ColBERT"]})
    generator = torch.Generator().manual_seed(1)
    linear = torch.randn(dim, HIDDEN_SIZE, generator=generator)
    change_weights(
        folder,
        lambda weights: {f"bert.{name}": tensor for name, tensor in weights.items()} | {"linear.weight": linear},
    )
    defaults = {
        "query_token_id": "[unused0]",
        "doc_token_id": "[unused1]",
        "query_token": "[Q]",
        "doc_token": "[D]",
        "similarity": "cosine",
        "dim": dim,
        "doc_maxlen": 180,
        "mask_punctuation": True,
        "query_maxlen": 32,
        "attend_to_mask_tokens": False,
        "interaction": "colbert",
    }
    write_json(folder / "artifact.metadata", defaults | dict(settings or {}))
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def edit_json(path: Path, update: Mapping[str, Any], *, remove: tuple[str, ...] = ()) -> None:
    """Sets and removes keys of a JSON object in a file."""
    value = json.loads(path.read_text(encoding="utf-8")) | dict(update)
    write_json(path, {key: item for key, item in value.items() if key not in remove})


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Replaces the weights in a folder's model.safetensors by what `change` makes of them."""
    path = folder / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in change(load_file(path)).items()}, path)


# Our side


def tiny_encoder_config(*, num_layers: int = 2, positions: int = 512, num_heads: int = NUM_HEADS) -> EncoderConfig:
    """Our config with the shape of `tiny_bert_config`."""
    return EncoderConfig(
        vocab_size=vocab_size(),
        hidden_size=HIDDEN_SIZE,
        num_layers=num_layers,
        num_heads=num_heads,
        intermediate_size=INTERMEDIATE_SIZE,
        max_positions=positions,
    )


def tiny_cross_encoder(
    *,
    seed: int = 0,
    pattern: AttentionPattern = FULL,
    num_layers: int = 2,
    positions: int = 512,
    num_heads: int = NUM_HEADS,
    **more: Any,
) -> CrossEncoder:
    """A random cross-encoder in eval mode, not yet prepared. more: fields of CrossEncoderConfig.

    Unless given, max_tokens is the number of positions, and max_query_tokens 2/5 of max_tokens.
    """
    encoder = tiny_encoder_config(num_layers=num_layers, positions=positions, num_heads=num_heads)
    max_tokens = more.get("max_tokens", positions)
    limits = {"max_tokens": max_tokens, "max_query_tokens": max_tokens * 2 // 5}
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=pattern, **limits | more)
    return random_scorer(CrossEncoder(config), seed)


def tiny_bi_encoder(
    *, seed: int = 0, num_layers: int = 2, positions: int = 512, num_heads: int = NUM_HEADS, **more: Any
) -> BiEncoder:
    """A random bi-encoder in eval mode, not yet prepared. more: fields of BiEncoderConfig."""
    encoder = tiny_encoder_config(num_layers=num_layers, positions=positions, num_heads=num_heads)
    config = BiEncoderConfig(encoder, CLS_ID, SEP_ID, **{"max_tokens": 128} | more)
    return random_scorer(BiEncoder(config), seed)


def tiny_static_bi_encoder() -> BiEncoder:
    """A random table of vectors, as a bi-encoder."""
    config = BiEncoderConfig(StaticConfig(vocab_size(), HIDDEN_SIZE), None, None, max_tokens=512)
    return random_scorer(BiEncoder(config), 0)


def as_served(scorer: AnyScorer, dtype: torch.dtype = torch.float32) -> AnyScorer:
    """Prepares a scorer as for serving on a CPU, and returns it."""
    prepare(scorer, device=torch.device("cpu"), dtype=dtype)
    return scorer


def some_scores(scorer: Scorer) -> list[float]:
    """Scores of a fixed batch."""
    rng = random.Random(0)
    with torch.inference_mode():
        return scorer(score_batch([random_ids(rng, 5)], [[random_ids(rng, n) for n in (0, 9, 30, 60)]])).tolist()  # type: ignore[no-any-return]


def random_scorer(model: AnyModel, seed: int) -> AnyModel:
    """The scorer, or the model of `transformers`, with weights that `randomise` draws, in eval mode."""
    randomise(model, seed=seed)
    model.eval()  # type: ignore[no-untyped-call]  # transformers leaves it bare
    return model
