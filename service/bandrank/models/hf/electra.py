"""ELECTRA's discriminator as transformers saves it: BERT with perhaps narrower embeddings, and another head."""

from typing import Any

from transformers import ElectraConfig as SavedConfig

from bandrank.models.encoders.bert import ElectraConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf import bert
from bandrank.models.hf.files import Weights
from bandrank.models.hf.model import Family, head_names


def read_config(settings: dict[str, Any], weights: Weights) -> EncoderConfig:
    """The encoder's shape. Raises ValueError for unsupported settings."""
    embedding_size = SavedConfig.from_dict(settings).embedding_size
    shape = bert.read_shape({"num_attention_heads": 4} | settings, weights)  # ELECTRA's default; BERT's is 12
    return ElectraConfig(**shape, embedding_size=embedding_size)


def encoder_weights(weights: Weights, config: EncoderConfig) -> Weights:
    """The encoder's tensors under our names. Raises KeyError for a missing tensor."""
    assert isinstance(config, ElectraConfig), "the config of another family. This is a bug."
    translated = bert.encoder_weights(weights, config)
    if config.word_size != config.hidden_size:
        for part in ("weight", "bias"):
            translated[f"encoder.embeddings.project.{part}"] = weights[f"embeddings_project.{part}"]
    return translated


ELECTRA = Family(
    prefixes=("electra.",),
    tokens=bert.BERT.tokens,
    read_config=read_config,
    encoder_weights=encoder_weights,
    head=head_names(pooler="classifier.dense", classifier="classifier.out_proj"),
)
