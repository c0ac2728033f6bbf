"""The common part of scorers that encode query and candidate together (Nogueira & Cho 2019)."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import build_encoder, build_head
from bandrank.models.layers import passages
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.template import TextOf, TokenTemplate


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


class PairScorer(Scorer):
    """Reads each candidate beside its query. One that does not fit is scored by the best of its passages.

    leading: how many token ids precede both texts in each passage.  closing: how many end a candidate, and each of its
    passages.  shares_leading, shares_queries: whether passages share the rows of the former, and of their query.
    """

    precomputes: ClassVar[bool] = False
    shares_leading: ClassVar[bool] = True
    shares_queries: bool = False
    leading: int
    closing: int

    def pair_tokens(self, query_tokens: int, candidate_tokens: int) -> int:
        return self.leading + query_tokens + candidate_tokens

    def passages_limit(self, query_tokens: int, num_passages: int) -> int:
        """The most token ids that make `num_passages` passages."""
        return passages.most_tokens(num_passages, self._room(query_tokens), closing=self.closing)

    def passage_bounds(self, query_tokens: int, candidate_tokens: int) -> list[tuple[int, int]]:
        """The passages of a candidate beside a query, each from its first token id up to the one behind its last."""
        return passages.passage_bounds(candidate_tokens, self._room(query_tokens), closing=self.closing)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """The rows of all passages of a candidate, each with its closing, and with copies of what is not shared."""
        bounds = self.passage_bounds(query_tokens, candidate_rows)
        per_passage = (0 if self.shares_leading else self.leading) + (0 if self.shares_queries else query_tokens)
        copies = self.closing * (len(bounds) - 1)
        return sum(end - begin + per_passage for begin, end in bounds) + copies

    def query_rows(self, query_tokens: int) -> float:
        """The rows of the copy that all candidates share; 0 if each passage has its own, which `num_rows` counts."""
        return query_tokens if self.shares_queries else 0

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """The token ids themselves: nothing is computed before the query is known."""
        return tokens

    def split(self, batch: ScoreBatch) -> passages.Passages:
        """The passages of a batch."""
        return passages.split(batch, self.config.max_tokens, leading=self.leading, closing=self.closing)

    def score(self, batch: ScoreBatch) -> Tensor:
        return self.score_packed(batch, self.launch)

    def score_packed(self, batch: ScoreBatch, run: Callable[[Any], Tensor]) -> Tensor:
        """Like `score`, with `run` in place of `launch`, such as the replay of a CUDA graph."""
        parts, scores = self._score_parts(batch, run)
        return parts.best(scores, len(batch.candidates))

    def score_passages(self, batch: ScoreBatch, run: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """`score_packed`, and (C,) int64 the index of each candidate's best passage among its `passage_bounds`."""
        parts, scores = self._score_parts(batch, run)
        best = parts.best(scores, len(batch.candidates))
        return best, parts.which(scores, best)

    @abstractmethod
    def launch(self, packed: Any) -> Tensor:
        """(C,) scores of candidates, at least one, that fit beside their queries; the batch is as from `_packed`."""

    def _packed(self, batch: ScoreBatch) -> Any:
        """The batch in the form that `launch` takes, which is up to the scorer."""
        return batch

    def _score_parts(self, batch: ScoreBatch, run: Callable[[Any], Tensor]) -> tuple[passages.Passages, Tensor]:
        """The passages of a batch and the score of each."""
        parts = self.split(batch)
        if len(batch.candidates) == 0:
            return parts, torch.empty(0, device=self.encoder.device)
        return parts, run(self._packed(parts.batch))

    def _room(self, query_tokens: int) -> int:
        """The token ids of a passage beside a query."""
        room: int = self.config.max_tokens - self.leading - query_tokens
        return room


class JointScorer(PairScorer):
    """Scores a candidate by the sequence [CLS], query, [SEP], candidate, [SEP]."""

    shares_leading: ClassVar[bool] = False

    def __init__(self, config: JointConfig, between: tuple[int, ...] | None) -> None:
        """between: the token ids between the two texts; None: `sep_id`, if there is one."""
        super().__init__()
        end = () if config.sep_id is None else (config.sep_id,)
        self.query_template = TokenTemplate((), end if between is None else between, config.max_query_tokens)
        longest = config.max_candidate_tokens if config.long_candidates == "maxp" else config.max_tokens - 2
        self.candidate_template = TokenTemplate((), end, longest)
        self.leading, self.closing = 1, len(end)
        self.encoder = build_encoder(config.encoder)
        self.head = build_head(config.encoder)

    def facts(self, query_text_of: TextOf, text_of: TextOf) -> dict[str, str]:
        """The facts of any scorer, with the length of the whole sequence, and the head."""
        config = self.config
        long = "in passages" if config.long_candidates == "maxp" else "cut"
        query, candidate = self.query_template, self.candidate_template
        return super().facts(query_text_of, text_of) | {
            "reads": f"{text_of([config.cls_id])} {query.show('QUERY', query_text_of)} "
            f"{candidate.show('CANDIDATE', text_of)}",
            "length": f"{config.max_tokens} tokens, at most {query.max_tokens} of them the query's; longer candidates "
            f"{long}, up to {candidate.max_tokens} tokens",
            "head": self.head.extra_repr() or type(self.head).__name__,
        }

    def candidate_limit(self, query_tokens: int) -> int:
        """With MaxP, max_candidate_tokens; otherwise what fits beside the query."""
        if self.config.long_candidates == "maxp":
            return self.candidate_template.max_tokens
        return self._room(query_tokens)

    def passages_limit(self, query_tokens: int, num_passages: int) -> int:
        """With MaxP, the most token ids that make `num_passages` passages; otherwise a candidate is one passage."""
        if self.config.long_candidates == "maxp":
            return super().passages_limit(query_tokens, num_passages)
        return self.candidate_limit(query_tokens)
