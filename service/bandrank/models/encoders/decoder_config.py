"""The settings of decoders, saved within a checkpoint's config.json."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bandrank.models.encoders.grouped_config import GroupedConfig
from bandrank.models.layers.positions import Rotary

QWEN_ROTARY = Rotary(base=1_000_000.0)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(GroupedConfig):
    """The shape of a decoder such as Qwen2 (arXiv 2407.10671), Qwen3 (arXiv 2505.09388) and Gemma (arXiv 2403.08295).

    rotary: how positions turn queries and keys.  qkv_bias: whether the projections to queries, keys and values have a
    bias, as in Qwen2.  head_norms: whether each head of queries and keys is normed, as in Qwen3.
    activation: the gated unit's activation, a GELU in Gemma.
    Raises ValueError as GroupedConfig does.
    """

    causal: ClassVar[bool] = True
    why_no_kernels: ClassVar[str | None] = "the CUDA kernels have no causal attention"
    overflows_float16: ClassVar[bool] = True  # some states of Qwen models exceed 65,504

    rotary: Rotary = QWEN_ROTARY
    qkv_bias: bool = False
    head_norms: bool = False
    activation: Literal["geglu_tanh", "swiglu"] = "swiglu"
    kind: str = "decoder"
