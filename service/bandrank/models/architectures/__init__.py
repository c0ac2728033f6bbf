"""The architectures, by the name in a checkpoint's config.json."""

from bandrank.models.architectures.bi_encoder import BiEncoder
from bandrank.models.architectures.candidate_first_reranker import CandidateFirstReranker
from bandrank.models.architectures.colbert import ColBERT
from bandrank.models.architectures.cross_encoder import CrossEncoder
from bandrank.models.architectures.decoder_reranker import DecoderReranker
from bandrank.models.architectures.deformer import Deformer
from bandrank.models.architectures.mix_encoder import MixEncoder
from bandrank.models.architectures.poly_encoder import PolyEncoder
from bandrank.models.architectures.seq2seq_reranker import Seq2SeqReranker
from bandrank.models.architectures.sequence_cross_encoder import SequenceCrossEncoder
from bandrank.models.architectures.splade import Splade
from bandrank.models.architectures.virt import VIRT
from bandrank.models.scorer import Scorer

ARCHITECTURES: dict[str, type[Scorer]] = {
    scorer.architecture: scorer
    for scorer in (
        CrossEncoder,
        SequenceCrossEncoder,
        DecoderReranker,
        CandidateFirstReranker,
        Seq2SeqReranker,
        BiEncoder,
        MixEncoder,
        PolyEncoder,
        ColBERT,
        Splade,
        Deformer,
        VIRT,
    )
}

__all__ = [
    "ARCHITECTURES",
    "VIRT",
    "BiEncoder",
    "CandidateFirstReranker",
    "ColBERT",
    "CrossEncoder",
    "DecoderReranker",
    "Deformer",
    "MixEncoder",
    "PolyEncoder",
    "Seq2SeqReranker",
    "SequenceCrossEncoder",
    "Splade",
]
