"""Encoders with a decoder as re-rankers: the first token of the answer says whether the candidate is relevant (monoT5;
Nogueira et al. 2020, arXiv 2003.06713).
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bandrank.models.architectures.decoder_reranker import DecoderReranker, DecoderRerankerConfig
from bandrank.models.architectures.sequence_cross_encoder import sequences
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders import tower
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.t5 import T5Config, T5Stack


@dataclass(frozen=True)
class Seq2SeqRerankerConfig(DecoderRerankerConfig):
    """The settings of such a re-ranker, the same as a decoder's."""

    family: ClassVar[type[EncoderConfig]] = T5Config


class Seq2SeqReranker(DecoderReranker):
    """Scores as a decoder, but each prompt is encoded as a whole."""

    architecture: ClassVar[str] = "seq2seq_reranker"
    config_class: ClassVar[type] = Seq2SeqRerankerConfig
    shares_queries = False
    encoder: T5Stack  # type: ignore[assignment]  # in place of a decoder

    def launch(self, packed: ScoreBatch) -> Tensor:
        return self.head(self.encoder.answer(tower.read(self.encoder, sequences(packed, None))))  # type: ignore[no-any-return]
