"""Llama 3 (arXiv 2407.21783) without its causal mask, so that each token sees those behind it too, as in NVIDIA's
re-rankers and bi-encoders (LlamaBidirectionalModel), in EuroBERT (Boizard et al. 2025, arXiv 2503.05500), in
UltraBERT, most of whose layers are local, and in Mistrals that see all tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.grouped_block import GroupedBlock
from bandrank.models.layers.positions import Rotary

ROTARY = Rotary(base=500_000.0)


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(GroupedConfig):
    """The shape of such a Llama.

    rotary, local_rotary: how positions turn queries and keys in global and local layers.  windows: the window of each
    layer, in tokens on each side, or None; layers that it does not reach are global.
    """

    kind: str = "llama"
    rotary: Rotary = ROTARY
    local_rotary: Rotary = ROTARY
    windows: tuple[int | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MistralConfig(LlamaConfig):
    """The shape of a Mistral or Ministral 3."""

    overflows_float16: ClassVar[bool] = True  # supposed, as of decoders

    kind: str = "mistral"


@dataclass(frozen=True, kw_only=True)
class EuroBertConfig(LlamaConfig):
    """The shape of a EuroBERT."""

    kind: str = "eurobert"


@dataclass(frozen=True, kw_only=True)
class UltraBertConfig(LlamaConfig):
    """The shape of an UltraBERT."""

    kind: str = "ultrabert"


def llama(config: LlamaConfig) -> Stack:
    """A Llama of this shape, with random weights."""
    windows = dict(enumerate(config.windows))

    def block(index: int) -> GroupedBlock:
        rotary = config.rotary if (window := windows.get(index)) is None else config.local_rotary
        options = BlockOptions(activation="swiglu", rotary=rotary, window=window)
        return GroupedBlock(config, options, final=index == config.num_layers - 1)

    embeddings = Embeddings(config, position_table=False, normed=False)
    return Stack(config, embeddings, [block(index) for index in range(config.num_layers)])
