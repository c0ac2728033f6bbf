"""DeBERTa-v2 and -v3 as transformers saves them."""

from typing import Any, get_args

from transformers import DebertaV2Config

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.deberta import DebertaConfig
from bandrank.models.hf import bert, unplaced_bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames
from bandrank.models.hf.model import SUPPORTED, Family
from bandrank.models.hf.settings import sizes_of
from bandrank.models.layers.disentangled import Distances, Terms
from bandrank_kernels.pooled_scores import HeadActivation


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for unsupported settings."""
    deberta = DebertaV2Config.from_dict(settings)
    if (reason := _why_not(deberta)) is not None:
        raise ValueError(f"model_type 'deberta-v2' with {reason} is not supported; {SUPPORTED}")
    # What `getattr` reads is an attribute only where config.json gives it.
    kinds = {*(deberta.pos_att_type or ())} if deberta.relative_attention else set()
    terms = Terms("c2p" in kinds, "p2c" in kinds, shared=getattr(deberta, "share_att_key", False))
    farthest = deberta.max_relative_positions
    buckets = getattr(deberta, "position_buckets", -1)
    norms = [part.strip() for part in getattr(deberta, "norm_rel_ebd", "none").lower().split("|")]
    return DebertaConfig(
        **sizes_of(vars(deberta), weights[unplaced_bert.WORDS]),
        num_token_types=deberta.type_vocab_size,
        layer_norm_eps=deberta.layer_norm_eps,
        terms=terms if kinds else None,
        distances=Distances(
            farthest=farthest if farthest > 0 else deberta.max_position_embeddings,
            buckets=buckets if buckets > 0 else None,
        ),
        norm_distances="layer_norm" in norms,
        position_table=deberta.position_biased_input,
        pooler_activation=deberta.pooler_hidden_act,  # type: ignore[arg-type]  # `_why_not` has refused any other
    )


def _why_not(deberta: DebertaV2Config) -> str | None:
    """A setting of the model that is not computed here, with its value; None if all are."""
    size, kinds = deberta.hidden_size, deberta.pos_att_type or ()
    expected: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("gelu",),
        "pooler_hidden_act": get_args(HeadActivation),
        "conv_kernel_size": (0,),
        "embedding_size": (size,),
        "pooler_hidden_size": (size,),
        "attention_head_size": (size // deberta.num_attention_heads,),
        "relative_attention": (True,) if kinds else (True, False),
    }
    for name, values in expected.items():
        if (value := getattr(deberta, name, values[0])) not in values:
            return f"{name} {value!r}"
    return None if {*kinds} <= {"c2p", "p2c"} else f"pos_att_type {kinds!r}"


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises the errors of `layer_weights`."""
    assert isinstance(config, DebertaConfig), "the config of another family. This is a bug."
    parts, terms = dict(bert.NAMES.parts), config.terms
    parts["qkv"] = ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")
    if terms is not None and not terms.shared:
        parts |= {"position_key": "attention.self.pos_key_proj"} if terms.content_to_position else {}
        parts |= {"position_query": "attention.self.pos_query_proj"} if terms.position_to_content else {}
    translated = unplaced_bert.encoder_weights(weights, config, LayerNames(bert.NAMES.layer, parts))
    if config.position_table:
        translated["encoder.embeddings.position.weight"] = weights[bert.POSITIONS]
    if terms is not None:
        translated["encoder.relative.table.weight"] = weights["encoder.rel_embeddings.weight"]
        for part in ("weight", "bias") if config.norm_distances else ():
            translated[f"encoder.relative.norm.{part}"] = weights[f"encoder.LayerNorm.{part}"]
    return translated


DEBERTA = Family(
    prefixes=("deberta.",),
    tokens=bert.BERT.tokens,
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=bert.BERT.head,
)
