"""The families of encoders, by the `kind` that a checkpoint's config.json carries."""

from collections.abc import Callable
from functools import partial

from torch import nn

from bandrank.models.encoders.bert import bert
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.deberta import deberta, deberta_head
from bandrank.models.encoders.decoder import Decoder
from bandrank.models.encoders.embedding_gemma2 import embedding_gemma2
from bandrank.models.encoders.gemma3 import gemma3
from bandrank.models.encoders.jina_bert import jina_bert
from bandrank.models.encoders.llama import llama
from bandrank.models.encoders.modernbert import modernbert
from bandrank.models.encoders.mpnet import mpnet
from bandrank.models.encoders.protocol import Encoder
from bandrank.models.encoders.rotary_bert import rotary_bert
from bandrank.models.encoders.static import StaticTable
from bandrank.models.encoders.t5 import T5Stack
from bandrank.models.layers.head import LogitHead, NormedHead, ScoreHead

ENCODERS: dict[str, Callable[..., Encoder]] = {
    "bert": bert,
    "deberta": deberta,
    "decoder": Decoder,
    "distilbert": bert,
    "electra": bert,
    "embedding_gemma2": embedding_gemma2,
    "eurobert": llama,
    "gemma3": gemma3,
    "gte": rotary_bert,
    "jina_bert": jina_bert,
    "llama": llama,
    "modernbert": modernbert,
    "mistral": llama,
    "mpnet": mpnet,
    "nomic_bert": rotary_bert,
    "rotary_roberta": rotary_bert,
    "static": StaticTable,
    "t5": T5Stack,
    "ultrabert": llama,
}
HEADS: dict[str, Callable[..., nn.Module]] = {  # of families that do not have BERT's head
    "deberta": deberta_head,
    "decoder": LogitHead,
    "distilbert": partial(ScoreHead, activation="relu"),
    "electra": partial(ScoreHead, activation="gelu"),
    "eurobert": partial(ScoreHead, activation="gelu"),
    "llama": LogitHead,
    "modernbert": NormedHead,
    "t5": LogitHead,
    "ultrabert": partial(LogitHead, bias=True),
}


def build_encoder(config: EncoderConfig) -> Encoder:
    """An encoder of this shape, with random weights."""
    return ENCODERS[config.kind](config)


def build_head(config: EncoderConfig) -> nn.Module:
    """The family's layers from the state of [CLS] or of a decoder's last token, or from pooled states, to a score, with
    random weights: (n, hidden_size) to (n,) float32.
    """
    return HEADS.get(config.kind, ScoreHead)(config)
