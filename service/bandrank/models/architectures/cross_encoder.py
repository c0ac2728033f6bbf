"""Cross-encoders: query and candidate are encoded together (Nogueira & Cho 2019).

Full, Longformer, QDS-Transformer and sparse cross-encoders are one model with different attention patterns (Schlatt et
al. 2024, arXiv 2312.17649, section 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.families import build_encoder, build_head
from bandrank.models.layers import passages
from bandrank.models.layers.lexical import Lexical, LexicalConfig
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import FULL
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer, TokenTemplate
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, Capacity, PackedRows


@dataclass(frozen=True)
class CrossEncoderConfig:
    """The settings of a cross-encoder, saved in config.json.

    max_tokens: the most token ids of [CLS], query and candidate together.  max_query_tokens: of the query with [SEP].
    max_candidate_tokens: of a long candidate, before it is split into passages.
    long_candidates: a candidate that does not fit is scored by its best passage ("maxp") or is cut ("truncate").
    query_separators: how many [SEP] stand between query and candidate.
    token_types: whether candidates have token type 1; if False, all rows have type 0.
    lexical: evidence of shared words that is added to the score, or None.
    sentence_token: the token id before each sentence of a candidate, whose rows join the query's (QDS-Transformer).
    Raises ValueError if max_tokens does not fit the encoder's positions or leaves no room beside the longest query, and
    for a sentence token that is not in the vocabulary, or that has no rows of a query's own to join.
    """

    encoder: EncoderConfig
    cls_id: int
    sep_id: int
    pattern: AttentionPattern = FULL
    max_tokens: int = 512
    max_query_tokens: int = 256
    max_candidate_tokens: int = 16384
    long_candidates: Literal["maxp", "truncate"] = "maxp"
    token_types: bool = True
    query_separators: int = 1
    sentence_token: int | None = None
    lexical: LexicalConfig | None = None

    def __post_init__(self) -> None:
        if not self.max_query_tokens + 3 <= self.max_tokens <= self.encoder.max_positions:
            raise ValueError(
                f"max_tokens {self.max_tokens} must hold a query of {self.max_query_tokens} tokens and 3 more, "
                f"within {self.encoder.max_positions} positions"
            )
        if self.sentence_token is None:
            return
        if not 0 <= self.sentence_token < self.encoder.vocab_size:
            raise ValueError(
                f"sentence_token must be within 0..{self.encoder.vocab_size - 1}, the vocabulary, got "
                f"{self.sentence_token}"
            )
        if self.pattern.shares_queries:
            raise ValueError("sentence_token needs a pattern in which queries attend to [CLS] or to candidates")


class CrossEncoder(Scorer):
    """Scores a candidate by the last [CLS] state of the sequence of query and candidate."""

    architecture: ClassVar[str] = "cross_encoder"
    precomputes: ClassVar[bool] = False
    config_class: ClassVar[type] = CrossEncoderConfig

    def __init__(self, config: CrossEncoderConfig) -> None:
        super().__init__()
        self.config: CrossEncoderConfig = config
        self.attention = config.pattern
        self.query_template = TokenTemplate((), (config.sep_id,) * config.query_separators, config.max_query_tokens)
        longest = config.max_candidate_tokens if config.long_candidates == "maxp" else config.max_tokens - 2
        self.candidate_template = TokenTemplate((), (config.sep_id,), longest, config.sentence_token)
        self.encoder = build_encoder(config.encoder)
        self.head = build_head(config.encoder)
        self.lexical = Lexical(config.lexical, config.encoder.vocab_size) if config.lexical is not None else None

    def facts(self, text_of: Callable[[Sequence[int]], str]) -> dict[str, str]:
        """Those of any scorer, and the head and the pattern."""
        config = self.config
        long = "in passages" if config.long_candidates == "maxp" else "cut"
        query, candidate = self.query_template, self.candidate_template
        return super().facts(text_of) | {
            "reads": f"{text_of([config.cls_id])} {query.show('QUERY', text_of)} "
            f"{candidate.show('CANDIDATE', text_of)}",
            "length": f"{config.max_tokens} tokens, at most {query.max_tokens} of them the query's; longer candidates "
            f"{long}, up to {candidate.max_tokens} tokens",
            "head": self.head.extra_repr() or type(self.head).__name__,
            "pattern": config.pattern.summary,
        }

    def candidate_limit(self, query_tokens: int) -> int:
        """With MaxP, max_candidate_tokens; otherwise what fits beside the query."""
        if self.config.long_candidates == "maxp":
            return self.candidate_template.max_tokens
        return self.config.max_tokens - 1 - query_tokens

    def passages_limit(self, query_tokens: int, num_passages: int) -> int:
        """With MaxP, the token ids of so many passages; otherwise a candidate is one."""
        if self.config.long_candidates == "maxp":
            return passages.most_tokens(num_passages, self.config.max_tokens - 1 - query_tokens)
        return self.candidate_limit(query_tokens)

    def num_rows(self, query_tokens: int, candidate_rows: int) -> float:
        """Rows of all its passages, each with [CLS] and, where the pattern needs one, a copy of the query."""
        bounds = self.passage_bounds(query_tokens, candidate_rows)
        per_passage = 1 if self.config.pattern.shares_queries else 1 + query_tokens
        added_seps = len(bounds) - 1
        return sum(end - begin + per_passage for begin, end in bounds) + added_seps

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """The token ids themselves: a cross-encoder computes nothing before the query is known."""
        return tokens

    def score(self, batch: ScoreBatch) -> Tensor:
        return self.score_packed(batch, self.launch)

    def score_packed(self, batch: ScoreBatch, run: Callable[[PackedTokens], Tensor]) -> Tensor:
        """`score`, with `run` computing the packed batch: `launch`, or the replay of a CUDA graph."""
        if len(batch.candidates) == 0:
            return torch.empty(0, device=self.encoder.device)
        parts = passages.split(batch, self.config.max_tokens)
        scores = parts.best(run(self._packed(parts.batch)), len(batch.candidates))
        return self._with_evidence(scores, batch)

    def score_passages(self, batch: ScoreBatch, run: Callable[[PackedTokens], Tensor]) -> tuple[Tensor, Tensor]:
        """`score_packed`, and (C,) int64 the index of each candidate's best passage among its `passage_bounds`."""
        if len(batch.candidates) == 0:
            return self.score_packed(batch, run), torch.empty(0, dtype=torch.int64)
        parts = passages.split(batch, self.config.max_tokens)
        scores = run(self._packed(parts.batch))
        best = parts.best(scores, len(batch.candidates))
        return self._with_evidence(best, batch), parts.which(scores, best)

    def passage_bounds(self, query_tokens: int, candidate_tokens: int) -> list[tuple[int, int]]:
        """The passages of a candidate beside a query: the indices of their first token ids, and behind their last."""
        return passages.passage_bounds(candidate_tokens, self.config.max_tokens - 1 - query_tokens)

    def _packed(self, batch: ScoreBatch) -> PackedTokens:
        return pack(batch, self.config.pattern, cls_id=self.config.cls_id, sentence_token=self.config.sentence_token)

    def _with_evidence(self, scores: Tensor, batch: ScoreBatch) -> Tensor:
        """The scores, and what words tell beside them if the scorer asks for that."""
        return scores if self.lexical is None else scores + self.lexical(batch)

    def launch(self, packed: PackedTokens, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of a packed batch, launched kernel by kernel.

        cls_only: whether the last layer runs for [CLS] alone, which changes scores by no more than rounding.
        """
        plan = self.plan(packed.rows)
        return self.compute(PackedInputs.of(packed, plan, self.encoder.device), cls_only=cls_only)

    def plan(self, rows: PackedRows, capacity: Capacity | None = None) -> AttentionPlan:
        """The plan of a packed batch, as from `Encoder.plan`."""
        return self.encoder.plan(rows, self.config.pattern, capacity)

    def compute(self, inputs: PackedInputs, *, cls_only: bool = True) -> Tensor:
        """(num_candidates,) scores of packed rows; only launches kernels, and never makes the host wait."""
        types = inputs.token_types if self.config.token_types else torch.zeros_like(inputs.token_types)
        hidden = self.encoder.embed(inputs.ids, inputs.positions, types)
        if cls_only:
            cls = self.encoder.forward_cls(hidden, inputs.positions, inputs.plan, inputs.num_candidates)
        else:
            cls = self.encoder(hidden, inputs.positions, inputs.plan)[: inputs.num_candidates]
        return self.head(cls)  # type: ignore[no-any-return]
