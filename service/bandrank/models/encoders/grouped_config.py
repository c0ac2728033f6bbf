"""The settings that families with fewer heads of keys and values than of queries have in common."""

from dataclasses import dataclass

from bandrank.models.encoders.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class GroupedConfig(EncoderConfig):
    """The shape of such an encoder, whose feed-forward sublayers are gated.

    num_kv_heads: heads of keys and values, each shared by equally many heads of queries (Ainslie et al. 2023).
    head_size: the width of one head, which need not divide hidden_size.  layer_norm_eps: the epsilon of the RMSNorms.
    Raises ValueError if num_kv_heads does not divide num_heads, or head_size is odd.
    """

    num_kv_heads: int
    head_size: int
    num_token_types: int = 0
    layer_norm_eps: float = 1e-6

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
