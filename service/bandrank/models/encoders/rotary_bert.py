"""BERT with rotary positions: NomicBERT (Nussbaum et al. 2024, arXiv 2402.01613) and GTE (Zhang et al. 2024, arXiv
2407.19669) with gated units, and Jina AI's XLM-RoBERTa (Sturua et al. 2024, arXiv 2409.10173) without.
"""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions, PostNormBlock
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.positions import Rotary

NOMIC_ROTARY, GTE_ROTARY, JINA_ROTARY = Rotary(base=1_000.0), Rotary(base=160_000.0), Rotary(base=20_000.0)


@dataclass(frozen=True)
class NomicBertConfig(EncoderConfig):
    """BERT's settings. rotary: how positions turn queries and keys."""

    gated: ClassVar[bool] = True

    kind: str = "nomic_bert"
    rotary: Rotary = NOMIC_ROTARY


@dataclass(frozen=True)
class GteConfig(EncoderConfig):
    """BERT's settings. rotary: how positions turn queries and keys."""

    gated: ClassVar[bool] = True

    num_token_types: int = 1
    kind: str = "gte"
    rotary: Rotary = GTE_ROTARY


@dataclass(frozen=True)
class RotaryRobertaConfig(EncoderConfig):
    """BERT's settings. rotary: how positions turn queries and keys."""

    num_token_types: int = 1
    kind: str = "rotary_roberta"
    rotary: Rotary = JINA_ROTARY


def nomic_bert(config: NomicBertConfig) -> Stack:
    """Blocks with SwiGLU, in which only norms have biases."""
    return _stack(config, BlockOptions(activation="swiglu", bias=False, rotary=config.rotary))


def gte(config: GteConfig) -> Stack:
    """Blocks with GeGLU and biases."""
    return _stack(config, BlockOptions(activation="geglu", rotary=config.rotary))


def rotary_roberta(config: RotaryRobertaConfig) -> Stack:
    """BERT's blocks."""
    return _stack(config, BlockOptions(rotary=config.rotary))


def _stack(config: EncoderConfig, options: BlockOptions) -> Stack:
    embeddings = Embeddings(config, position_table=False)
    return Stack(config, embeddings, [PostNormBlock(config, options) for _ in range(config.num_layers)])
