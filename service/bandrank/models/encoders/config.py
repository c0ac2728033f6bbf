"""What a checkpoint says about its encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder: what architectures need to know of any, and all that there is to know of a BERT.

    kind: a key of ENCODERS. Another kind of encoder adds its fields in a subclass, with a default for `kind`.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    num_token_types: int = 2
    layer_norm_eps: float = 1e-12
    kind: str = "bert"

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")

    @classmethod
    def variant(cls, value: Mapping[str, Any]) -> type["EncoderConfig"]:
        """The class of a saved config, by its `kind`; BERT's if it has none. Raises ValueError for an unknown kind."""
        classes = {each.kind: each for each in (cls, *cls.__subclasses__())}
        kind = value.get("kind", cls.kind)
        if kind not in classes:
            raise ValueError(f"kind: {kind!r} is none of {', '.join(map(repr, classes))}")
        return classes[kind]

    @property
    def head_dim(self) -> int:
        """Numbers of a row in one head."""
        return self.hidden_size // self.num_heads

    @property
    def products_per_layer(self) -> int:
        """Multiplications of one row with a layer's weights."""
        return self.hidden_size * (4 * self.hidden_size + 2 * self.intermediate_size)
