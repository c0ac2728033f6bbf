"""Llama 3 (arXiv 2407.21783) without its causal mask, so that each token sees those behind it too, as in NVIDIA's
re-rankers and bi-encoders (LlamaBidirectionalModel), and in EuroBERT (Boizard et al. 2025, arXiv 2503.05500).
"""

from dataclasses import dataclass

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.grouped_block import GroupedBlock
from bandrank.models.layers.positions import Rotary

ROTARY = Rotary(base=500_000.0)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(GroupedConfig):
    """The shape of such a Llama. rotary: how positions turn queries and keys."""

    kind: str = "llama"
    rotary: Rotary = ROTARY


@dataclass(frozen=True, kw_only=True)
class EuroBertConfig(LlamaConfig):
    """The shape of a EuroBERT."""

    kind: str = "eurobert"


def llama(config: LlamaConfig) -> Stack:
    """A Llama of this shape, with random weights."""
    options = BlockOptions(activation="swiglu", rotary=config.rotary)
    blocks = [GroupedBlock(config, options, final=index == config.num_layers - 1) for index in range(config.num_layers)]
    return Stack(config, Embeddings(config, position_table=False, normed=False), blocks)
