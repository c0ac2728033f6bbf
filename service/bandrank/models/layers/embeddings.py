"""BERT's input embeddings, and their positions stretched to longer texts.

Devlin et al. 2019; positional interpolation for learned tables: Schlatt et al. 2024, section 4.1.
"""

import torch
from torch import Tensor, nn

from bandrank.models.layers.norm import LayerNorm
from bandrank_kernels.row_norms import Addend, embed_rows


class Embeddings(nn.Module):
    """LayerNorm of word + position + token type."""

    def __init__(
        self, *, vocab_size: int, hidden_size: int, max_positions: int, num_token_types: int, layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(max_positions, hidden_size)
        self.token_type = nn.Embedding(num_token_types, hidden_size)
        self.norm = LayerNorm(hidden_size, eps=layer_norm_eps)

    def forward(self, ids: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """ids, positions, token_types: (total,) int64.  Returns (total, hidden_size)."""
        if self.norm.runs_fused(self.word.weight, len(ids)):
            return self._fused(Addend(self.word.weight, ids), positions, token_types)
        return self.of_words(self.word(ids), positions, token_types)

    def of_words(self, words: Tensor, positions: Tensor, token_types: Tensor) -> Tensor:
        """The same of word vectors, which need not be those of the table. words: (total, hidden_size)."""
        if self.norm.runs_fused(words, len(words)):
            return self._fused(Addend(words), positions, token_types)
        return self.norm(words + self.token_type(token_types) + self.position(positions))  # type: ignore[no-any-return]

    def _fused(self, words: Addend, positions: Tensor, token_types: Tensor) -> Tensor:
        types, places = Addend(self.token_type.weight, token_types), Addend(self.position.weight, positions)
        norm = self.norm
        return embed_rows(words, types, places, norm.weight, norm.bias, eps=norm.eps, backend=norm.execution.backend)


def trained_rows(table: Tensor) -> int:
    """How many leading rows of a learned position table are well trained, found as the paper's code finds it.

    A ridge regression (alpha 1) predicts each row from the five before it. It is fitted on the rows before a cut and
    tested on those after; the cut moves down by 5 until the error has risen three times in a row. table: (positions,
    hidden_size).
    """
    history = 5
    cut = len(table)
    rows = table.double()
    previous, risen = float("inf"), 0
    for cut in reversed(range(history + 1, len(table) - history - 1, history)):
        error = _ridge_error(rows[:cut], rows[cut:], history)
        risen = risen + 1 if error > previous else 0
        previous = error
        if risen == 3:
            break
    return cut


def _ridge_error(train: Tensor, test: Tensor, history: int) -> float:
    """Mean squared error on `test` of a ridge regression of rows on `history` rows before them, fitted on `train`."""

    def pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([rows[i : len(rows) - history + i] for i in range(history)], 1), rows[history:]

    inputs, targets = pairs(train)
    mean_in, mean_out = inputs.mean(0), targets.mean(0)
    centred = inputs - mean_in
    # Fewer rows than inputs (5 * hidden_size): solve the dual form, whose matrix is rows x rows.
    gram = centred @ centred.T + torch.eye(len(centred), dtype=centred.dtype)
    weights = centred.T @ torch.linalg.solve(gram, targets - mean_out)
    inputs, targets = pairs(test)
    return float(((inputs - mean_in) @ weights + mean_out - targets).square().mean())


def interpolate_positions(table: Tensor, num_positions: int) -> Tensor:
    """(num_positions, hidden_size): the trained part of a position table, resampled linearly to `num_positions` rows.

    Raises ValueError if the table has more rows than that, or too few rows to tell its trained part.
    """
    if not 20 <= len(table) <= num_positions:
        raise ValueError(f"cannot interpolate a table of {len(table)} positions to {num_positions}")
    kept = trained_rows(table)
    place = torch.arange(num_positions, dtype=torch.float64) * ((kept - 1) / (num_positions - 1))
    low = place.floor().long()
    high = place.ceil().long()
    return torch.lerp(table[low], table[high], (place - low)[:, None].to(table.dtype))
