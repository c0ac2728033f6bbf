"""Decoders as re-rankers whose prompt has the candidate before the query, as in Contextual AI's re-rankers (the card of
ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b).

The states of a candidate do not depend on the query here. They are not cached all the same: a decoder's keys and values
take tens of kilobytes for each token.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from bandrank.models.architectures.decoder_reranker import DecoderReranker, DecoderRerankerConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.ragged import Ragged
from bandrank.models.template import TokenTemplate
from bandrank_kernels.arrays import offsets


@dataclass(frozen=True)
class CandidateFirstRerankerConfig(DecoderRerankerConfig):
    """A decoder's settings, with a prompt of head, candidate, between, query, tail, in this order.

    max_query_tokens: the most token ids from behind the candidate to the end.
    """

    candidate_first: ClassVar[bool] = True


class CandidateFirstReranker(DecoderReranker):
    """Scores by the last token's state. The head of the prompt is run once for all candidates of a batch."""

    architecture: ClassVar[str] = "candidate_first_reranker"
    config_class: ClassVar[type] = CandidateFirstRerankerConfig
    shares_queries = False

    def __init__(self, config: CandidateFirstRerankerConfig) -> None:
        super().__init__(config)
        prompt, longest = config.prompt, config.max_candidate_tokens
        self.query_template = TokenTemplate(prompt.between, prompt.tail, config.max_query_tokens, wording=prompt.query)
        self.candidate_template = TokenTemplate((), (), longest, wording=prompt.candidate, closing=prompt.closing)
        self.leading, self.closing = len(prompt.head), len(prompt.closing)

    def launch(self, packed: ScoreBatch) -> Tensor:
        count = len(packed.candidates)
        order = np.stack([np.arange(count), count + packed.candidate_query], 1)  # the query behind each candidate
        texts = Ragged.joined([packed.candidates, packed.queries]).chained(order)
        head = Ragged.from_token_ids([self.config.prompt.head])
        return super().launch(ScoreBatch(head, texts, offsets([count])))
