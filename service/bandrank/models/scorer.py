"""The one interface between the engine and every architecture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.patterns import sparse
from bandrank.models.ragged import Ragged
from bandrank_kernels.windowed_attention import AttentionPattern

# What any candidate costs, in rows of an encoder of 6 x 384, however light its interaction: to be collected from a
# cache, laid out in a batch, and sorted into an answer (5 microseconds where a row takes 100).
LIGHT_ROWS = 0.05
MINILM_PRODUCTS = 6 * 384 * (4 * 384 + 2 * 1536)  # multiplications of a row with the weights of all layers


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
        limit = self.max_tokens if limit is None else min(limit, self.max_tokens)
        room = max(0, limit - len(self.prefix) - len(self.suffix))
        cut = sum(piece != self.sentence_token for piece in pieces[room:])
        return [*self.prefix, *pieces[:room], *self.suffix], cut


@dataclass(frozen=True)
class CandidateSide:
    """What a scorer's representations of candidates depend on, beside the candidates' token ids.

    config: plain values by name.  weights: tensors by the names that they have in the scorer's state_dict.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]


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
    attention: AttentionPattern = sparse(window=None)  # of the encoder's layers; by default each text by itself

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

    def candidate_side(self) -> CandidateSide:
        """All that `encode_candidates` reads, and nothing of the query's side if that can be told apart; by default the
        whole config and all weights.
        """
        return CandidateSide(asdict(self.config), self.state_dict())

    def candidate_limit(self, query_tokens: int) -> int:
        """The most token ids a candidate may have beside a query of `query_tokens`; by default the template's limit."""
        del query_tokens
        return self.candidate_template.max_tokens

    @property
    def row_cost(self) -> float:
        """What a row costs, as a multiple of one of a MiniLM-L6: by the products with the encoder's weights."""
        encoder = getattr(self.config, "encoder", None)
        return encoder.num_layers * encoder.products_per_layer / MINILM_PRODUCTS if encoder is not None else 1.0

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

    def _candidate_side(self, config: Sequence[str], weights: tuple[str, ...]) -> CandidateSide:
        """These fields of the config, and the weights whose names start like one of `weights`."""
        fields, state = asdict(self.config), self.state_dict()
        named = {name: tensor for name, tensor in state.items() if name.startswith(weights)}
        return CandidateSide({name: fields[name] for name in config}, named)
