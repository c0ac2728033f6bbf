"""Decoders as re-rankers: the state of the last token says whether the candidate is relevant (Qwen3 Embedding, arXiv
2506.05176, section 2).

A prompt has the query before the candidate, so that no state of the query depends on a candidate: each query is run
once, and all of its candidates attend to it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bandrank.models.architectures.joint import PairScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.decoder import Decoder
from bandrank.models.encoders.decoder_config import DecoderConfig
from bandrank.models.encoders.families import build_encoder, build_head
from bandrank.models.layers.causal import Continuations
from bandrank.models.template import TokenTemplate
from bandrank.models.wording import PLAIN, Wording
from bandrank_kernels.arrays import indices_within
from bandrank_kernels.transfer import to_device


@dataclass(frozen=True)
class Prompt:
    """What surrounds query and candidate: head, query, between, candidate, tail, in this order.

    head, between, tail: token ids.  query, candidate: the words that are tokenised together with the texts.
    closing: the ids, by themselves, of the words that follow the candidate, if any do: one that is cut ends with them.
    Raises ValueError for a prompt without a tail, in which an empty candidate would have no token, and for a `closing`
    without such words, or the reverse.
    """

    head: tuple[int, ...]
    between: tuple[int, ...]
    tail: tuple[int, ...]
    query: Wording = PLAIN
    candidate: Wording = PLAIN
    closing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _, after = self.candidate.around()
        if not self.tail or bool(after) != bool(self.closing):
            raise ValueError("a prompt needs a tail, of token ids, and the ids of words that follow the candidate")


@dataclass(frozen=True)
class DecoderRerankerConfig:
    """The settings of a decoder as a re-ranker, saved in config.json.

    max_tokens: the most token ids of a whole prompt.  max_query_tokens: the most of them up to the candidate.
    max_candidate_tokens: the most of a long candidate with the tail, before it is split into passages, by the best of
    which it is scored. The tail is never cut, and each passage has it.
    Raises ValueError if the encoder is no decoder, if max_tokens does not fit its positions or leaves no room beside
    the longest query, or if words stand between the candidate and the tail.
    """

    family: ClassVar[type[EncoderConfig]] = DecoderConfig
    candidate_first: ClassVar[bool] = False

    encoder: EncoderConfig
    prompt: Prompt
    max_tokens: int = 8192
    max_query_tokens: int = 6144
    max_candidate_tokens: int = 16384

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, self.family):
            raise ValueError(f"the encoder must be a {self.family.kind}, got {self.encoder.kind!r}")  # noqa: TRY004  # a bad value
        if self.prompt.closing and not self.candidate_first:
            raise ValueError("no words may stand between the candidate and the tail")
        around_query, around_candidate = self.around
        least = max(self.max_query_tokens, around_query) + around_candidate + 2
        if not least <= self.max_tokens <= self.encoder.max_positions:
            raise ValueError(
                f"max_tokens {self.max_tokens} must hold the prompt, of which {self.max_query_tokens} tokens are the "
                f"query's and {around_candidate} the candidate's, within {self.encoder.max_positions} positions"
            )

    @property
    def around(self) -> tuple[int, int]:
        """The numbers of the prompt's token ids that stand around the query, and around the candidate."""
        prompt = self.prompt
        if self.candidate_first:
            return len(prompt.between) + len(prompt.tail), len(prompt.head) + len(prompt.closing)
        return len(prompt.head) + len(prompt.between), len(prompt.tail)


class DecoderReranker(PairScorer):
    """Scores a candidate by the logit of "relevant" minus that of "not relevant" behind the prompt."""

    architecture: ClassVar[str] = "decoder_reranker"
    config_class: ClassVar[type] = DecoderRerankerConfig
    shares_queries = True  # a query is run once for all of its candidates
    encoder: Decoder

    def __init__(self, config: DecoderRerankerConfig) -> None:
        super().__init__()
        self.config: DecoderRerankerConfig = config
        prompt = config.prompt
        self.query_template = TokenTemplate(prompt.head, prompt.between, config.max_query_tokens, wording=prompt.query)
        longest = config.max_candidate_tokens
        self.candidate_template = TokenTemplate((), prompt.tail, longest, wording=prompt.candidate)
        self.leading, self.closing = 0, len(prompt.tail)
        self.encoder = build_encoder(config.encoder)  # type: ignore[assignment]  # the config has checked its kind
        self.head = build_head(config.encoder)

    def launch(self, packed: ScoreBatch) -> Tensor:
        queries, candidates = packed.queries, packed.candidates
        layout = Continuations(queries.cu_seqlens, candidates.cu_seqlens, packed.candidate_query)
        first = queries.lengths[layout.prefix].repeat(candidates.lengths)
        positions = torch.cat(
            [
                torch.from_numpy(indices_within(queries.lengths)),
                torch.from_numpy(indices_within(candidates.lengths) + first),
            ]
        )
        plan = self.encoder.plan_continuations(layout)
        host = [torch.cat([queries.values, candidates.values]), positions, torch.from_numpy(layout.last_rows)]
        ids, positions, last, *tables = to_device([*host, *plan.host_tables], self.encoder.device)
        hidden = self.encoder.word_vectors(ids)
        return self.head(self.encoder.forward_last(hidden, positions, plan.bind(tables), last))  # type: ignore[no-any-return]
