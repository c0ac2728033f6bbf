"""The one interface between the engine and every architecture."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.layers.lexical import Lexical
from bandrank.models.ragged import Ragged
from bandrank.models.template import TextOf, TokenTemplate
from bandrank_kernels.windowed_attention import AttentionPattern

# The least cost of a candidate, in rows of an encoder of 6 x 384: it is read from a cache, laid out in a batch, and
# sorted into a response (5 microseconds, where a row takes 100).
LIGHT_ROWS = 0.05
MINILM_PRODUCTS = 6 * 384 * (4 * 384 + 2 * 1536)  # multiplications of a row with the weights of all layers


@dataclass(frozen=True)
class CandidateSide:
    """What a scorer's representations of candidates depend on, apart from the candidates' token ids.

    config: plain values by name.  weights: tensors by their names in the scorer's state_dict.
    """

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]


class Scorer(nn.Module, ABC):
    """Scores candidates for queries in two steps, of which the first does not need the query.

    Laws, tested for every architecture: `forward` equals `score` of `encode_candidates`; a candidate's score does not
    depend on the other candidates or their order; a scorer that is saved and loaded gives the same scores.
    """

    architecture: ClassVar[str]
    precomputes: ClassVar[bool]  # False: representations are the token ids themselves, and not worth storing
    embeds: ClassVar[bool] = False  # True: a representation is one vector, and `encode_queries` gives those of queries
    config_class: ClassVar[type[Any]]
    config: Any  # the architecture's frozen dataclass, saved as config.json
    query_template: TokenTemplate
    candidate_template: TokenTemplate
    representation_size: int = 0  # trailing dimension of a representation; token ids have none
    num_words: int = 0  # word pieces that are kept beside a candidate's representation
    num_terms: int = 0  # if not 0, the first number of a representation's rows is one of so many ids
    encoder: Encoder
    packed_parts: ClassVar[tuple[str, ...]] = ("encoder.layers",)  # modules whose linear layers are packed
    exact_layers: frozenset[str] = frozenset()  # names of layers that int8 leaves in float32
    strips_texts: bool = False  # whether white space around texts is dropped; our own checkpoints' tokenizers do it
    attention: AttentionPattern = AttentionPattern.apart()  # by default each text attends to itself alone

    @abstractmethod
    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """Encodes n sequences of token ids in host memory as n sequences of rows, the candidates' representations.

        A scorer that precomputes gives (total, representation_size) float32 on its device.
        """

    @property
    def sides(self) -> "tuple[Scorer, ...]":
        """The scorers whose encoders read texts: itself, and the one that reads queries if that is another."""
        return (self,)

    @property
    def encodes_queries_apart(self) -> bool:
        """Whether queries have an encoder of their own, or a table of weights in place of one."""
        return False

    def encode_queries(self, queries: Ragged) -> Ragged:
        """What is compared with representations of candidates; only some scorers encode a query without candidates."""
        raise NotImplementedError

    @abstractmethod
    def score(self, batch: ScoreBatch) -> Tensor:
        """(C,) float32 raw scores, higher is better. Queries are token ids in host memory, candidates representations.

        Representations that were stored may have any float dtype and be on any device; the scorer moves them.
        """

    def forward(self, batch: ScoreBatch) -> Tensor:
        """Like `score`, from token ids on both sides."""
        return self.score(ScoreBatch(batch.queries, self.encode_candidates(batch.candidates), batch.cu_candidates))

    @property
    def lexical_evidence(self) -> Lexical | None:
        """The evidence of shared words in its score, if there is any."""
        return None

    def candidate_side(self) -> CandidateSide:
        """The config and weights that `encode_candidates` depends on; by default all of them.

        A cache of representations stays valid as long as they do not change.
        """
        return CandidateSide(asdict(self.config), self.state_dict())

    def candidate_limit(self, query_tokens: int) -> int:
        """The most token ids of a candidate beside a query of `query_tokens`; by default the template's limit."""
        del query_tokens
        return self.candidate_template.max_tokens

    def passages_limit(self, query_tokens: int, num_passages: int) -> int:
        """The most token ids of a candidate that has `num_passages` passages beside a query of `query_tokens`; by
        default the limit of any candidate, which is one passage.
        """
        del num_passages
        return self.candidate_limit(query_tokens)

    def pair_tokens(self, query_tokens: int, candidate_tokens: int) -> int:
        """The length of the longest sequence in which a query and a candidate are read: both together, or the longer
        one if the scorer precomputes.
        """
        return max(query_tokens, candidate_tokens) if self.precomputes else query_tokens + candidate_tokens

    @property
    def overflows_float16(self) -> bool:
        """Whether an encoder's states are known to go beyond the range of float16."""
        return any(side.config.encoder.overflows_float16 for side in self.sides)

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        """What the scorer is and reads, by name, for somebody who wants to know before it is served.

        query_text_of: decodes a query's token ids.  text_of: those of a candidate.
        """
        return {
            "encoder": self.config.encoder.summary,
            "parameters": f"{sum(each.numel() for each in self.parameters()):,}",
            "reads": f"{self.query_template.show('QUERY', query_text_of)} and "
            f"{self.candidate_template.show('CANDIDATE', text_of)}",
            "length": f"{self.query_template.max_tokens} tokens of a query, "
            f"{self.candidate_template.max_tokens} of a candidate",
        }

    @property
    def row_cost(self) -> float:
        """The cost of a row as a multiple of a MiniLM-L6's, by the products with the encoder's weights; without layers,
        that of a light one.
        """
        encoder: EncoderConfig = self.config.encoder
        return encoder.num_layers * encoder.products_per_layer / MINILM_PRODUCTS or LIGHT_ROWS

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The cost of scoring one candidate, in rows of the scorer's encoder, the unit of a batch's budget; by default
        the number of its rows.

        candidate_rows: the length of its representation; for a scorer that does not precompute, its tokens.
        """
        del query_tokens
        return candidate_rows

    def query_rows(self, query_tokens: int) -> float:
        """The cost of encoding a query, once for all of its candidates in a batch, in the same unit; by default the
        number of its tokens.
        """
        return query_tokens

    def rows_of(self, query_tokens: int, lengths: Sequence[int]) -> list[float]:
        """The `num_rows` of several candidates of one query; the first also counts the rows of the query."""
        cost = {length: self.num_rows(query_tokens, length) for length in set(lengths)}
        rows = [cost[length] for length in lengths]
        if rows:
            rows[0] += self.query_rows(query_tokens)
        return rows

    def initialise(self, encoder: Encoder) -> Self:
        """Copies the weights of a trained encoder to start training from; other weights keep their random values."""
        self.encoder.load_state_dict(encoder.state_dict())
        return self

    def _candidate_side(self, config: Sequence[str], weights: tuple[str, ...]) -> CandidateSide:
        """The named fields of the config, and the weights whose names start with one of `weights`."""
        fields, state = asdict(self.config), self.state_dict()
        named = {name: tensor for name, tensor in state.items() if name.startswith(weights)}
        return CandidateSide({name: fields[name] for name in config}, named)
