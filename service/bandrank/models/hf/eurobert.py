"""EuroBERT and UltraBERT as transformers saves them, and as their authors did, who called EuroBERT's pooling
`clf_pooling`, and gave each layer of UltraBERT a window and a base of positions.
"""

from typing import Any, Literal

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.llama import EuroBertConfig, UltraBertConfig
from bandrank.models.hf import llama, sequence_cross_encoder
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import SUPPORTED, Family, Model, head_names
from bandrank.models.hf.rotary import read_saved
from bandrank.models.scorer import Scorer

POOLINGS: dict[str, Literal["cls", "late", "mean"]] = {"bos": "cls", "late": "late", "mean": "mean"}
LOCAL = "sliding_attention"
EPSILON = {"rms_norm_eps": 1e-5}  # EuroBERT's default, ten times that of other Llamas
LAYERS = {"full_attention": "rotary", LOCAL: "local_rotary"}


def read_eurobert(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings."""
    return EuroBertConfig(**llama.read_fields(EPSILON | settings, weights, "EuroBERT"))


def read_ultrabert(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for missing or unsupported settings."""
    given = [settings.get(name) or [] for name in ("layer_types", "attention_windows", "rope_theta")]
    layers, windows, bases = given
    if (
        not all(isinstance(each, list) for each in given)
        or {*layers} - LAYERS.keys()
        or len({*filter(None, windows)}) > 1  # all local layers have one size
        or len({*zip(layers or map(bool, windows), bases, strict=False)}) > len({*(layers or map(bool, windows))})
    ):
        raise ValueError(f"an UltraBERT with layers of {layers}, {windows}, {bases} is not supported; {SUPPORTED}")
    try:
        from transformers import UltrabertConfig  # noqa: PLC0415  # older versions have none
    except ImportError:
        raise ValueError("UltraBERT needs a newer version: pip install --upgrade transformers") from None
    saved = read_saved(UltrabertConfig.from_dict, settings)
    kinds, rope = saved.layer_types or [], dict[str, Any](saved.rope_parameters or {})
    fields = {
        kind: llama.read_fields(
            settings | {"rope_parameters": rope.get(kind, {"rope_theta": None})}, weights, "UltraBERT"
        )
        for kind in {*kinds}
    }
    rotary = {LAYERS[kind]: each["rotary"] for kind, each in fields.items()}
    windows = tuple(saved.sliding_window if kind == LOCAL else None for kind in kinds)
    return UltraBertConfig(**fields[kinds[0]] | rotary, windows=windows)


def read_reranker(model: Model) -> Scorer:
    """The re-ranker of a folder. Raises BadCheckpoint, and KeyError for a missing tensor."""
    names = ("classifier_pooling", "clf_pooling")
    named = sorted({str(model.settings[name]) for name in names if name in model.settings}) or ["late"]
    if len(named) > 1 or named[0] not in POOLINGS:
        raise model.refuse(f"classifier_pooling {' and '.join(named)} is not supported, only one of {[*POOLINGS]}")
    return sequence_cross_encoder.build(model, POOLINGS[named[0]], model.head_weights)


EUROBERT = Family(
    prefixes=("model.",),
    tokens={"mask": "<|mask|>"},
    read_config=read_eurobert,
    encoder_weights=llama.encoder_weights,
    head=head_names(pooler="dense", classifier="classifier"),
    read_reranker=read_reranker,
)
ULTRABERT = Family(
    prefixes=("ultrabert.", "model."),
    tokens={},
    read_config=read_ultrabert,
    encoder_weights=llama.encoder_weights,
    head=head_names(classifier="classifier"),
    read_reranker=sequence_cross_encoder.read,
)
