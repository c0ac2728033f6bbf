"""BERT with rotary positions: NomicBERT (Nussbaum et al. 2024, arXiv 2402.01613) and GTE (Zhang et al. 2024, arXiv
2407.19669) with gated units, and Jina AI's XLM-RoBERTa (Sturua et al. 2024, arXiv 2409.10173) without.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BERT, BlockOptions, PostNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.positions import Rotary

NOMIC_ROTARY, GTE_ROTARY, JINA_ROTARY = Rotary(base=1_000.0), Rotary(base=160_000.0), Rotary(base=20_000.0)


@dataclass(frozen=True)
class RotaryBertConfig(EncoderConfig):
    """BERT's settings. rotary: how positions turn queries and keys.  options: the other options of blocks."""

    options: ClassVar[BlockOptions] = BERT

    rotary: Rotary = JINA_ROTARY


@dataclass(frozen=True)
class RotaryRobertaConfig(RotaryBertConfig):
    """The shape of Jina AI's XLM-RoBERTa."""

    num_token_types: int = 1
    kind: str = "rotary_roberta"


@dataclass(frozen=True)
class NomicBertConfig(RotaryBertConfig):
    """The shape of a NomicBERT. Only norms have biases."""

    gated: ClassVar[bool] = True
    options: ClassVar[BlockOptions] = BlockOptions(activation="swiglu", bias=False)

    kind: str = "nomic_bert"
    rotary: Rotary = NOMIC_ROTARY


@dataclass(frozen=True)
class GteConfig(RotaryBertConfig):
    """The shape of a GTE."""

    gated: ClassVar[bool] = True
    options: ClassVar[BlockOptions] = BlockOptions(activation="geglu")

    num_token_types: int = 1
    kind: str = "gte"
    rotary: Rotary = GTE_ROTARY


def rotary_bert(config: RotaryBertConfig) -> Stack:
    """BERT's blocks with these options."""
    options = replace(config.options, rotary=config.rotary)
    blocks = [PostNormBlock(config, options) for _ in range(config.num_layers)]
    return Stack(config, Embeddings(config, position_table=False), blocks)
