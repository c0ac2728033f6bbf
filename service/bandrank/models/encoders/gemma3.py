"""Gemma 3 (arXiv 2503.19786) without its causal mask, as in EmbeddingGemma (arXiv 2509.20354): most layers are local,
and norms stand on both sides of each sublayer.
"""

from dataclasses import dataclass
from typing import ClassVar

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.block import BlockOptions
from bandrank.models.layers.embeddings import Embeddings
from bandrank.models.layers.grouped_block import SandwichBlock
from bandrank.models.layers.positions import Rotary

GLOBAL_ROTARY, LOCAL_ROTARY = Rotary(base=1_000_000.0), Rotary(base=10_000.0)


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(GroupedConfig):
    """The shape of such a Gemma.

    windows: the window of each layer, in tokens on each side; None for a global layer. Surplus entries are not read.
    global_rotary, local_rotary: how positions turn queries and keys in global and local layers.
    Raises ValueError as GroupedConfig does, and for fewer windows than layers.
    """

    overflows_float16: ClassVar[bool] = True

    windows: tuple[int | None, ...]
    kind: str = "gemma3"
    global_rotary: Rotary = GLOBAL_ROTARY
    local_rotary: Rotary = LOCAL_ROTARY

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.windows) < self.num_layers:
            raise ValueError(f"windows must be those of {self.num_layers} layers, got {len(self.windows)}")


def options_of(config: Gemma3Config, index: int) -> BlockOptions:
    """The options of one block."""
    window = config.windows[index]
    rotary = config.global_rotary if window is None else config.local_rotary
    return BlockOptions(activation="geglu_tanh", rotary=rotary, window=window)


def gemma3(config: Gemma3Config) -> Stack:
    """A Gemma 3 of this shape, with random weights."""
    last = config.num_layers - 1
    blocks = [SandwichBlock(config, options_of(config, index), final=index == last) for index in range(last + 1)]
    return Stack(config, Embeddings(config, position_table=False, normed=False), blocks)
