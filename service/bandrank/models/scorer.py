"""The one interface between the engine and every architecture."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.linear import Linear
from bandrank.models.ragged import Ragged


@dataclass(frozen=True)
class TokenTemplate:
    """How the word pieces of a text become a model's token ids: prefix, pieces, suffix.

    max_tokens: the most ids a text may have, prefix and suffix included; more pieces than fit are cut at the end.
    sentence_token: an id put before each sentence (QDS-Transformer), or None.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    max_tokens: int
    sentence_token: int | None = None

    def apply(self, pieces: Sequence[int], *, limit: int | None = None) -> tuple[list[int], int]:
        """Token ids of a text, and how many of its pieces were cut to stay within `limit` (default: max_tokens)."""
        room = max(0, min(limit or self.max_tokens, self.max_tokens) - len(self.prefix) - len(self.suffix))
        cut = sum(piece != self.sentence_token for piece in pieces[room:])
        return [*self.prefix, *pieces[:room], *self.suffix], cut


class Scorer(nn.Module, ABC):
    """Scores candidates for queries, in two steps, because the first can be done before the query is known.

    Laws, tested for every architecture: `forward` equals `score` of `encode_candidates`; a candidate's score does not
    depend on its company or order; a saved and loaded scorer scores the same.
    """

    architecture: ClassVar[str]
    precomputes: ClassVar[bool]  # are representations worth storing? False: they are the token ids themselves
    config_class: ClassVar[type]
    config: Any  # the architecture's frozen dataclass, saved as config.json
    query_template: TokenTemplate
    candidate_template: TokenTemplate
    device = torch.device("cpu")  # where the weights are; set by prepare()

    @abstractmethod
    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """Representations of candidates: n sequences of token ids (host) in, n representations out."""

    @abstractmethod
    def score(self, batch: ScoreBatch) -> Tensor:
        """(C,) float32 raw scores, higher is better. Queries are token ids (host), candidates representations."""

    def forward(self, batch: ScoreBatch) -> Tensor:
        """The same scores from token ids on both sides."""
        return self.score(ScoreBatch(batch.queries, self.encode_candidates(batch.candidates), batch.cu_candidates))

    def candidate_limit(self, query_tokens: int) -> int:
        """The most token ids a candidate may have beside a query of `query_tokens`; by default the template's limit."""
        del query_tokens
        return self.candidate_template.max_tokens

    def num_rows(self, query_tokens: int, candidate_tokens: int) -> int:
        """Rows the model computes for one candidate, which a batch's budget counts; by default its tokens."""
        del query_tokens
        return candidate_tokens

    def prepare(self, *, device: torch.device, dtype: torch.dtype) -> Self:
        """Makes the scorer ready to serve: weights on `device`, frozen, in `dtype` (a module named `head` is not)."""
        self.to(device)
        self.device = device
        for name, module in self.named_children():
            if name != "head":
                module.to(dtype)
        self.eval().requires_grad_(requires_grad=False)
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepack()
        return self
