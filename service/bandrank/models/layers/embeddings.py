"""Input embeddings (Devlin et al. 2019, section 3)."""

from torch import Tensor, nn

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import LayerNorm
from bandrank_kernels.row_norms import Addend, embed_rows


class Embeddings(nn.Module):
    """LayerNorm of the sum of word, position and token type embeddings, of those that have a table."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        position_table: bool = True,
        bias: bool = True,
        normed: bool = True,
    ) -> None:
        """position_table: False for encoders with rotary positions or none.  bias: whether the norm has a bias.
        normed: whether there is a norm. If words have another width than states, a projection follows.
        """
        super().__init__()
        size = config.word_size
        self.project = None if size == config.hidden_size else Linear(size, config.hidden_size)
        self.word = nn.Embedding(config.vocab_size, size)
        self.position = nn.Embedding(config.max_positions, size) if position_table else None
        self.token_type = nn.Embedding(config.num_token_types, size) if config.num_token_types else None
        self.norm = LayerNorm(size, eps=config.layer_norm_eps, bias=bias) if normed else None

    def forward(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """(total, hidden_size). ids, positions, token_types: (total,) int64."""
        fused = self._in_one_launch(Addend(self.word.weight, ids), positions, token_types)
        return self.of_words(self.word(ids), positions, token_types) if fused is None else self._projected(fused)

    def of_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """(total, hidden_size), as `forward`, for given word vectors, (total, width of the tables)."""
        if (fused := self._in_one_launch(Addend(words), positions, token_types)) is not None:
            return self._projected(fused)
        if self.token_type is not None:
            words = words + self.token_type(token_types)
        if self.position is not None:
            words = words + self.position(positions)
        return self._projected(words if self.norm is None else self.norm(words))

    def _projected(self, embedded: Tensor) -> Tensor:
        return embedded if self.project is None else self.project(embedded)

    def _in_one_launch(self, words: Addend, positions: Tensor, token_types: Tensor) -> Tensor | None:
        norm = self.norm
        if self.token_type is None or self.position is None or norm is None or not norm.runs_fused(words.rows):
            return None
        types, of_position = Addend(self.token_type.weight, token_types), Addend(self.position.weight, positions)
        return embed_rows(
            words, types, of_position, norm.weight, norm.bias, eps=norm.eps, backend=norm.execution.backend
        )
