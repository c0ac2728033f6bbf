"""Cross-encoders whose encoder reads query and candidate as one text, as with ModernBERT, whose local layers also limit
what query and [CLS] attend to (Warner et al. 2024, arXiv 2412.13663, section 2.1).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from bandrank.models.architectures.joint import JointConfig, JointScorer
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.layers.pooling import pool
from bandrank.models.ragged import Ragged
from bandrank.models.wording import PLAIN, Wording


@dataclass(frozen=True, kw_only=True)
class SequenceCrossEncoderConfig(JointConfig):
    """The settings of a sequence cross-encoder, saved in config.json.

    between: the token ids between query and candidate; None: `sep_id`, if there is one.
    pooling: what the head reads: the last state of [CLS] or of the last token, or the mean of all; "late" is the mean
    of the scores of all.
    query_wording: the words around a query.  candidate_wording: the words before a candidate.
    """

    between: tuple[int, ...] | None = None
    pooling: Literal["cls", "last", "late", "mean"] = "cls"
    query_wording: Wording = PLAIN
    candidate_wording: Wording = PLAIN


class SequenceCrossEncoder(JointScorer):
    """Scores a candidate by the pooled last states of the sequence of query and candidate."""

    architecture: ClassVar[str] = "sequence_cross_encoder"
    config_class: ClassVar[type] = SequenceCrossEncoderConfig

    def __init__(self, config: SequenceCrossEncoderConfig) -> None:
        super().__init__(config, config.between)
        self.config: SequenceCrossEncoderConfig = config
        self.query_template = replace(self.query_template, wording=config.query_wording)
        self.candidate_template = replace(self.candidate_template, wording=config.candidate_wording)

    def launch(self, packed: ScoreBatch) -> Tensor:
        texts = sequences(packed, self.config.cls_id)
        if self.config.pooling == "late":
            states = tower.read(self.encoder, texts)
            return pool(Ragged(self.head(states.values)[:, None], states.cu_seqlens), "mean")[:, 0]
        return self.head(tower.read_pooled(self.encoder, texts, self.config.pooling))  # type: ignore[no-any-return]


def sequences(batch: ScoreBatch, cls_id: int | None) -> Ragged:
    """Any [CLS], query and candidate as one sequence, in host memory; templates put any [SEP] behind both texts."""
    first = Ragged.from_token_ids([[] if cls_id is None else [cls_id]])
    count, num_queries = len(batch.candidates), len(batch.queries)
    order = np.stack([np.zeros(count, np.int64), 1 + batch.candidate_query, 1 + num_queries + np.arange(count)], 1)
    return Ragged.joined([first, batch.queries, batch.candidates]).chained(order)
