"""The one interface between the engine and every architecture."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import Encoder
from bandrank.models.encoders.stack import Stack
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import MANY_ROWS, LayerNorm
from bandrank.models.layers.patterns import sparse
from bandrank.models.ragged import Ragged
from bandrank_kernels import Backend
from bandrank_kernels.windowed_attention import AttentionPattern, why_no_kernels

# What any candidate costs, in rows of an encoder of 6 x 384, however light its interaction: to be collected from a
# cache, laid out in a batch, and sorted into an answer (5 microseconds where a row takes 100).
LIGHT_ROWS = 0.05


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


def check_limits(config: Any, *, least: int = 2) -> None:
    """Raises ValueError unless the config's max_query_tokens and max_candidate_tokens are within `least` and the
    encoder's positions.
    """
    for name in ("max_query_tokens", "max_candidate_tokens"):
        if not least <= getattr(config, name) <= config.encoder.max_positions:
            raise ValueError(
                f"{name} must be within {least}..{config.encoder.max_positions}, got {getattr(config, name)}"
            )


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
    representation_size: int = 0  # trailing dimension of a representation; token ids have none
    encoder: Encoder
    device = torch.device("cpu")  # where the weights are; set by prepare()

    @property
    def attention(self) -> AttentionPattern:
        """The pattern of the encoder's layers; by default each text by itself."""
        return sparse(window=None)

    def why_no_kernels(self) -> str | None:
        """Why the encoder's attention runs in plain torch, as a clause; None if CUDA kernels compute it."""
        encoder = self.encoder
        if encoder.backend not in {"auto", "cuda"}:
            return f"{encoder.backend!r} was asked for"
        return why_no_kernels(
            self.attention, device=encoder.device, dtype=encoder.dtype, head_dim=encoder.config.head_dim
        )

    @property
    def graph_bytes(self) -> int:
        """Device memory that CUDA graphs hold."""
        return 0

    def why_no_graphs(self) -> str | None:
        """Why batches are launched kernel by kernel, as a clause; None if they are replayed from CUDA graphs."""
        return f"a {self.architecture} is not captured"

    @abstractmethod
    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """Representations of candidates: n sequences of token ids (host) in, n representations out.

        A scorer that precomputes gives float32 values on its device, (total, representation_size).
        """

    @abstractmethod
    def score(self, batch: ScoreBatch) -> Tensor:
        """(C,) float32 raw scores, higher is better. Queries are token ids (host), candidates representations.

        Representations that were stored may have any float dtype and be on any device; the scorer moves them.
        """

    def forward(self, batch: ScoreBatch) -> Tensor:
        """The same scores from token ids on both sides."""
        return self.score(ScoreBatch(batch.queries, self.encode_candidates(batch.candidates), batch.cu_candidates))

    def candidate_limit(self, query_tokens: int) -> int:
        """The most token ids a candidate may have beside a query of `query_tokens`; by default the template's limit."""
        del query_tokens
        return self.candidate_template.max_tokens

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """What scoring one candidate costs, in rows of the scorer's encoder, which a batch's budget counts; by default
        its rows.

        candidate_rows: the length of its representation; for a scorer that does not precompute, its tokens.
        """
        del query_tokens
        return candidate_rows

    def initialise(self, encoder: Encoder) -> Self:
        """Takes over a trained encoder's weights, to be trained further; what it lacks keeps its random start."""
        self.encoder.load_state_dict(encoder.state_dict())
        return self

    def prepare(
        self, *, device: torch.device, dtype: torch.dtype, backend: Backend = "auto", graphs: bool = False
    ) -> Self:
        """Makes the scorer ready to serve: weights on `device`, frozen, in `dtype` (a module named `head` is not), its
        encoder computed by `backend`. graphs: from CUDA graphs, where it can be (`why_no_graphs`).
        """
        del graphs  # a matter of the architecture
        self.to(device)
        self.device = device
        for name, module in self.named_children():
            if name != "head":
                module.to(dtype)
        self.eval().requires_grad_(requires_grad=False)
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepack()
            if isinstance(module, Stack | LayerNorm):
                module.backend = backend
            if isinstance(module, LayerNorm):
                module.fused_from = MANY_ROWS
        return self
