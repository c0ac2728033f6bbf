"""The settings of encoders, saved within a checkpoint's config.json."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder: all settings of BERT, and what architectures read of any encoder.

    kind: a key of `families.ENCODERS`. Another family adds its settings in a subclass, with a default for `kind`.
    causal: whether rows attend only to rows before them.
    gated: whether the feed-forward sublayer has a gate, a third matrix.
    why_no_kernels, why_no_cpu_kernels: why no CUDA kernel, or no CPU kernel, computes the family's attention, as a
    clause; None if they do.
    biases_distances: whether scores have a bias for the distance of two rows.
    overflows_float16: whether states of trained models of the family go beyond the range of float16.
    Raises ValueError if the heads do not divide hidden_size.
    """

    causal: ClassVar[bool] = False
    gated: ClassVar[bool] = False
    why_no_kernels: ClassVar[str | None] = None
    why_no_cpu_kernels: ClassVar[str | None] = None
    biases_distances: ClassVar[bool] = False
    overflows_float16: ClassVar[bool] = False

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

    @property
    def masks_keys(self) -> bool:
        """Whether single rows can be hidden from all others, as ColBERT hides its [MASK] rows."""
        return not self.causal

    @classmethod
    def variant(cls, value: Mapping[str, Any]) -> type["EncoderConfig"]:
        """The class of a saved config by its `kind`, which defaults to BERT. Raises ValueError for an unknown kind."""
        # A class without a kind of its own is the base of several families.
        classes = {each.kind: each for each in _with_subclasses(cls) if "kind" in vars(each)}
        kind = value.get("kind", cls.kind)
        if kind not in classes:
            raise ValueError(f"kind: {kind!r} is none of {', '.join(map(repr, classes))}")
        return classes[kind]

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def word_size(self) -> int:
        """The width of word vectors."""
        return self.hidden_size

    @property
    def summary(self) -> str:
        """The family and the shape in one line."""
        return f"{self.kind}, {self.num_layers} layers of {self.hidden_size}, {self.num_heads} heads"

    @property
    def products_per_layer(self) -> int:
        """Multiplications of one row with the weights of a layer."""
        return self.hidden_size * (4 * self.num_heads * self.head_dim + (2 + self.gated) * self.intermediate_size)


def _with_subclasses(kind: type[EncoderConfig]) -> Iterator[type[EncoderConfig]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _with_subclasses(each)
