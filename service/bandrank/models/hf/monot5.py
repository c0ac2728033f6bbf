"""T5 as encoders and as re-rankers (monoT5): in which words these are asked, and what they answer.

After castorini/pygaggle (rerank/transformer.py) and the card of unicamp-dl/monoptt5-base. T5's tokenizers split a text
at spaces before they look for pieces, so that its parts can be tokenised apart.
"""

import re
from dataclasses import replace

from torch import Tensor

from bandrank.models.architectures.seq2seq_reranker import Seq2SeqReranker, Seq2SeqRerankerConfig
from bandrank.models.checkpoint import read_object
from bandrank.models.encoders.t5 import T5Config
from bandrank.models.hf.decoder_reranker import PromptText, warn_unless_known
from bandrank.models.hf.files import Weights
from bandrank.models.hf.layers import LayerNames, layer_weights
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Family, Model
from bandrank.models.hf.t5 import encoder_weights, parts, read_config, saved_config, table, with_scaled_queries
from bandrank.models.scorer import Scorer
from bandrank.models.wording import PLAIN

MOST_TOKENS = 512
ENGLISH = ("Query:", "Document:", "Relevant:")
ASKED = {  # the words, and the answers for yes and no, by model_type
    "t5": (ENGLISH, "▁true", "▁false"),
    "mt5": (ENGLISH, "▁yes", "▁no"),
}
ASKED_BY_NAME = {  # of which the first counts
    "monoptt5": (("Pergunta:", "Documento:", "Relevante:"), "▁Sim", "▁Não"),
    "ptt5": (ENGLISH, "▁sim", "▁não"),
    "mt5-3b-mmarco": (ENGLISH, "▁true", "▁"),
}
OTHERS = re.compile("(?<![a-z])(duot5|rankt5|listt5|lit5|mt5-13b)")  # compare candidates, or answer with other tokens
OWN = {"own_norm": "layer.0.layer_norm", "own_value": "layer.0.SelfAttention.v", "own_out": "layer.0.SelfAttention.o"}


def read_reranker(model: Model) -> Scorer:
    """The re-ranker of a folder. Raises BadCheckpoint, and KeyError for a missing tensor."""
    if OTHERS.search(name := model.name.lower()):
        raise model.refuse(f"a T5 that is not asked as monoT5 is ({model.name}) is not supported")
    if any(each.startswith("classification_head") for each in model.weights):
        raise model.refuse("a T5 with a classifier is not supported")
    if "decoder.final_layer_norm.weight" not in model.weights:
        raise model.refuse("a T5 without its decoder cannot re-rank; embedding models have a modules.json")
    assert isinstance(model.encoder, T5Config), "the config of another family. This is a bug."
    asked = next((asked for part, asked in ASKED_BY_NAME.items() if part in name), None)
    if asked is None:
        warn_unless_known(model)
    (head, between, tail), yes, no = asked or ASKED[model.settings["model_type"]]
    text = PromptText(head, PLAIN, (between,), (tail, "</s>"), yes, no, candidate=PLAIN)
    encoder = replace(model.encoder, num_answer_layers=saved_config(model.settings).num_decoder_layers or 0)
    max_tokens = most_tokens(model, MOST_TOKENS)
    config = Seq2SeqRerankerConfig(
        encoder, text.tokenised(model.folder), max_tokens=max_tokens, max_query_tokens=max_tokens // 2
    )
    others = _decoder_weights(model, encoder) | {"head.classifier.weight": _head(model, yes, no)}
    return model.assemble(Seq2SeqReranker, config, others)


def _decoder_weights(model: Model, encoder: T5Config) -> Weights:
    """The decoder's tensors under our names, and the embedding of the token that starts an answer."""
    weights, last = model.weights, encoder.num_answer_layers - 1
    names = LayerNames("decoder.block", parts(1, "EncDecAttention", gated=encoder.gated) | OWN)
    layers = layer_weights(with_scaled_queries(weights, encoder), replace(encoder, num_layers=last + 1), names)
    start = model.settings.get("decoder_start_token_id")
    if start is None:
        start = read_object(model.folder / "generation_config.json", optional=True).get("decoder_start_token_id", 0)
    starts = table(weights, "decoder.embed_tokens.weight")
    if start not in range(len(starts)):
        raise model.refuse(f"decoder_start_token_id must be a token, not {start!r}")
    return {name.replace(".layers.", ".decoder."): tensor for name, tensor in layers.items()} | {
        "encoder.start": starts[start].clone(),
        f"encoder.decoder.{last}.final_norm.weight": weights["decoder.final_layer_norm.weight"],
    }


def _head(model: Model, yes: str, no: str) -> Tensor:
    """(1, hidden_size) the difference of two rows of the output matrix, by which T5 multiplies scaled states."""
    saved, name = saved_config(model.settings), "lm_head.weight"
    matrix = table(model.weights, name) if model.settings.get("tie_word_embeddings", True) else model.weights[name]
    relevant, irrelevant = (matrix[[model.token_id(token)]].float() for token in (yes, no))
    scaled = model.settings["model_type"] == "t5" and saved.scale_decoder_outputs  # mT5 never scales
    return (relevant - irrelevant) * (saved.d_model**-0.5 if scaled else 1.0)


T5 = Family(
    prefixes=("transformer.",),
    tokens={},
    read_config=read_config,
    encoder_weights=encoder_weights,
    head={},
    read_reranker=read_reranker,
)
