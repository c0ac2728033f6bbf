"""Input embeddings (Devlin et al. 2019)."""

from torch import Tensor, nn

from bandrank.models.layers.norm import LayerNorm
from bandrank_kernels.row_norms import Addend, embed_rows


class Embeddings(nn.Module):
    """LayerNorm of word + position + token type.

    max_positions, num_token_types: rows of the tables; 0 for encoders without, whose rows know their positions by
    rotation, or not at all.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        layer_norm_eps: float,
        max_positions: int = 0,
        num_token_types: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(max_positions, hidden_size) if max_positions else None
        self.token_type = nn.Embedding(num_token_types, hidden_size) if num_token_types else None
        self.norm = LayerNorm(hidden_size, eps=layer_norm_eps, bias=bias)

    def forward(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """ids, positions, token_types: (total,) int64.  Returns (total, hidden_size)."""
        fused = self._in_one_launch(Addend(self.word.weight, ids), len(ids), positions, token_types)
        return self.of_words(self.word(ids), positions, token_types) if fused is None else fused

    def of_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """The same of word vectors, which need not be those of the table. words: (total, hidden_size)."""
        if (fused := self._in_one_launch(Addend(words), len(words), positions, token_types)) is not None:
            return fused
        if self.token_type is not None:
            words = words + self.token_type(token_types)
        if self.position is not None:
            words = words + self.position(positions)
        return self.norm(words)  # type: ignore[no-any-return]

    def _in_one_launch(self, words: Addend, count: int, positions: Tensor, token_types: Tensor) -> Tensor | None:
        norm = self.norm
        if self.token_type is None or self.position is None or not norm.runs_fused(words.rows, count):
            return None
        types, of_position = Addend(self.token_type.weight, token_types), Addend(self.position.weight, positions)
        return embed_rows(
            words, types, of_position, norm.weight, norm.bias, eps=norm.eps, backend=norm.execution.backend
        )
