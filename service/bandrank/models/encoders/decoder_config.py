"""The settings of decoders, saved within a checkpoint's config.json."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bandrank.models.encoders.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(EncoderConfig):
    """The shape of a decoder such as Qwen2 (arXiv 2407.10671), Qwen3 (arXiv 2505.09388) and Gemma (arXiv 2403.08295).

    num_kv_heads: heads of keys and values, each shared by as many heads of queries (Ainslie et al. 2023).
    head_size: the width of one head, which need not divide hidden_size.  rotary_base: of the rotary positions.
    qkv_bias: whether the projections to queries, keys and values have a bias, as in Qwen2.
    head_norms: whether each head of queries and keys is normed, as in Qwen3.  layer_norm_eps: of the RMSNorms.
    activation: of the gated unit, which in Gemma is a GELU.
    Raises ValueError if num_kv_heads does not divide num_heads, or head_size is odd.
    """

    causal: ClassVar[bool] = True
    overflows_float16: ClassVar[bool] = True  # some states of Qwen models exceed 65,504

    num_kv_heads: int
    head_size: int
    rotary_base: float = 1_000_000.0
    qkv_bias: bool = False
    head_norms: bool = False
    activation: Literal["geglu_tanh", "swiglu"] = "swiglu"
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6
    kind: str = "decoder"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_size % 2:
            raise ValueError(
                f"num_kv_heads {self.num_kv_heads} must divide num_heads {self.num_heads}, and head_size "
                f"{self.head_size} must be even"
            )

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def products_per_layer(self) -> int:
        heads = 2 * self.num_heads + 2 * self.num_kv_heads  # queries, keys, values, and the output
        return self.hidden_size * (heads * self.head_size + 3 * self.intermediate_size)
