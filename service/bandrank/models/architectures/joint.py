"""The common part of scorers that encode query and candidate together (Nogueira & Cho 2019)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import build_encoder, build_head
from bandrank.models.layers import passages
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.template import TokenTemplate


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """The fields that these scorers have in common.

    max_tokens: the most token ids of [CLS], query and candidate together.  max_query_tokens: the most of a query with
    [SEP].  max_candidate_tokens: the most of a long candidate, before it is split into passages.
    long_candidates: a candidate that does not fit is scored by its best passage ("maxp") or is cut ("truncate").
    sep_id: the token behind both texts, or None.
    Raises ValueError if max_tokens does not fit the encoder's positions or leaves no room beside the longest query.
    """

    encoder: EncoderConfig
    cls_id: int
    sep_id: int | None
    max_tokens: int = 512
    max_query_tokens: int = 256
    max_candidate_tokens: int = 16384
    long_candidates: Literal["maxp", "truncate"] = "maxp"

    def __post_init__(self) -> None:
        if not self.max_query_tokens + 3 <= self.max_tokens <= self.encoder.max_positions:
            raise ValueError(
                f"max_tokens {self.max_tokens} must hold a query of {self.max_query_tokens} tokens and 3 more, "
                f"within {self.encoder.max_positions} positions"
            )


class JointScorer(Scorer):
    """Scores a candidate by the sequence [CLS], query, [SEP], candidate, [SEP]; long ones by their passages."""

    precomputes: ClassVar[bool] = False
    shares_queries: bool = False  # whether candidates share the rows of their query

    def __init__(self, config: JointConfig, between: tuple[int, ...] | None) -> None:
        """between: the token ids between the two texts; None: `sep_id`, if there is one."""
        super().__init__()
        end = () if config.sep_id is None else (config.sep_id,)
        self.query_template = TokenTemplate((), end if between is None else between, config.max_query_tokens)
        longest = config.max_candidate_tokens if config.long_candidates == "maxp" else config.max_tokens - 2
        self.candidate_template = TokenTemplate((), end, longest)
        self.encoder = build_encoder(config.encoder)
        self.head = build_head(config.encoder)

    def facts(self, text_of: Callable[[Sequence[int]], str]) -> dict[str, str]:
        """The facts of any scorer, with the length of the whole sequence, and the head."""
        config = self.config
        long = "in passages" if config.long_candidates == "maxp" else "cut"
        query, candidate = self.query_template, self.candidate_template
        return super().facts(text_of) | {
            "reads": f"{text_of([config.cls_id])} {query.show('QUERY', text_of)} "
            f"{candidate.show('CANDIDATE', text_of)}",
            "length": f"{config.max_tokens} tokens, at most {query.max_tokens} of them the query's; longer candidates "
            f"{long}, up to {candidate.max_tokens} tokens",
            "head": self.head.extra_repr() or type(self.head).__name__,
        }

    @property
    def closing(self) -> int:
        """The token ids that end a candidate, which each of its passages has too."""
        return len(self.candidate_template.suffix)

    def candidate_limit(self, query_tokens: int) -> int:
        """With MaxP, max_candidate_tokens; otherwise what fits beside the query."""
        if self.config.long_candidates == "maxp":
            return self.candidate_template.max_tokens
        limit: int = self.config.max_tokens
        return limit - 1 - query_tokens

    def pair_tokens(self, query_tokens: int, candidate_tokens: int) -> int:
        """The token ids of both texts and of [CLS], which is in neither template."""
        return 1 + query_tokens + candidate_tokens

    def passages_limit(self, query_tokens: int, num_passages: int) -> int:
        """With MaxP, the most token ids that make `num_passages` passages; otherwise a candidate is one passage."""
        if self.config.long_candidates == "maxp":
            room = self.config.max_tokens - 1 - query_tokens
            return passages.most_tokens(num_passages, room, closing=self.closing)
        return self.candidate_limit(query_tokens)

    def passage_bounds(self, query_tokens: int, candidate_tokens: int) -> list[tuple[int, int]]:
        """The passages of a candidate beside a query, each from its first token id up to the one behind its last."""
        room = self.config.max_tokens - 1 - query_tokens
        return passages.passage_bounds(candidate_tokens, room, closing=self.closing)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """Rows of all passages of a candidate, each with [CLS] and, if the pattern needs one, a copy of the query."""
        bounds = self.passage_bounds(query_tokens, candidate_rows)
        per_passage = 1 if self.shares_queries else 1 + query_tokens
        copies = self.closing * (len(bounds) - 1)
        return sum(end - begin + per_passage for begin, end in bounds) + copies

    def query_rows(self, query_tokens: int) -> float:
        """The rows of the copy that all candidates share; 0 if each passage has its own, which `num_rows` counts."""
        return query_tokens if self.shares_queries else 0

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """The token ids themselves: nothing is computed before the query is known."""
        return tokens
