"""Bi-encoders as sentence-transformers saves them: modules in order, each with its own settings; behind a Router, those
of queries and those of documents.
"""

from dataclasses import replace
from typing import Any

from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.checkpoint import BadCheckpoint, assemble, read_object
from bandrank.models.hf import dense, static
from bandrank.models.hf.chat_template import joins_plainly
from bandrank.models.hf.files import Weights, module_chain
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Model
from bandrank.models.hf.modules import class_names, require_bi_encoder, require_on_vector, require_usual_states
from bandrank.models.hf.pooling import read_poolings
from bandrank.models.hf.prompts import wordings
from bandrank.models.hf.qwen import MAX_DECODER_TOKENS, require_no_code
from bandrank.models.hf.similarity import read_similarity
from bandrank.models.hf.task_adapters import tower_weights
from bandrank.models.layers.dense import DenseConfig
from bandrank.models.scorer import Scorer
from bandrank.models.wording import PLAIN


def read(model: Model, queries: Model | None = None) -> Scorer:
    """The bi-encoder of a folder. queries: what reads them, if that is another model.

    Raises BadCheckpoint, ValueError, and KeyError for a missing tensor.
    """
    config, weights, why = _read(model, "document")
    if queries is not None:
        require_usual_states(queries)
        of_queries, of_theirs, _ = _read(queries, "query")
        config = replace(config, of_queries=of_queries)
        weights |= {f"of_queries.{name}": tensor for name, tensor in of_theirs.items()}
    scorer = assemble(BiEncoder, config, weights, source=str(model.root))
    scorer.why_similarity = why
    return scorer


def _read(model: Model, route: str) -> tuple[BiEncoderConfig, Weights, str]:
    """The settings and the weights of a route's modules, or of all, and the reason for the similarity."""
    chain = module_chain(model.root, route)
    modules, paths = class_names(model, (each for each, _ in chain)), [path for _, path in chain]
    folder, encoder, is_static = model.root, model.encoder, model.family is static.STATIC
    layers = modules.count("Dense")
    pooled = [static.MODULE] if is_static else ["Transformer", "Pooling"]
    plain = [*pooled, *["Dense"] * layers]
    if modules not in (plain, [*plain, "Normalize"]):
        raise model.refuse(f"modules {modules} are not supported, only {', '.join(pooled)}, Dense and Normalize")
    require_bi_encoder(model)
    if encoder.causal:
        require_no_code(model)
    of_pooling, *paths = paths[len(pooled) - 1 :]
    for path in paths:
        require_on_vector(path)
    library = read_object(folder / "config_sentence_transformers.json", optional=True)
    pooling = {} if is_static else read_object(of_pooling / "config.json")
    query_wording, candidate_wording = wordings(library)
    mode, *joined = read_poolings(pooling)
    prompted = {mode, *joined} != {"last"} and (query_wording, candidate_wording) != (PLAIN, PLAIN)
    if prompted and not pooling.get("include_prompt", True):
        raise BadCheckpoint(f"{folder}: a pooling that leaves the tokens of a prompt out is not supported")
    named, normalised = library.get("similarity_fn_name"), "Normalize" in modules
    similarity, why = read_similarity(model, named, normalised=normalised)
    dense_layers = [dense.read(path) for path in paths[:layers]]
    if matrix := model.family.projection:  # behind the pooling, which all but maxima let it pass
        if mode == "max" or joined:
            raise model.refuse("maxima, or joined poolings, of states that the encoder projects are not supported")
        product = model.weights[matrix].float()
        dense_layers.insert(0, (DenseConfig(size=len(product), bias=False), {"linear.weight": product}))
    whole = dense_layers[-1][0].size if dense_layers else (1 + len(joined)) * encoder.hidden_size
    size = _kept(model, model.size or library.get("truncate_dim"), whole)
    if size is not None and normalised and (model.similarity or named) == "dot":
        raise model.refuse("the dot product of vectors that are cut behind a Normalize module is not supported")
    limits = static.read_limits(model) if is_static else _limits(model)
    config = BiEncoderConfig(
        **limits,
        encoder=encoder,
        pooling=mode,
        joined=tuple(joined),
        similarity=similarity,
        dense=tuple(layer for layer, _ in dense_layers),
        size=size,
        query_wording=query_wording,
        candidate_wording=candidate_wording,
        separate_towers=bool(model.settings.get("lora_adaptations")),
    )
    weights = tower_weights(model) | dense.under("dense", dense_layers)
    return config, weights, why


def _limits(model: Model) -> dict[str, Any]:
    """What is read of a text, as fields of a config. Raises BadCheckpoint, and ValueError as `Model.ids`."""
    most = model.encoder.max_positions
    if model.encoder.causal:
        most = min(most, MAX_DECODER_TOKENS)
    limit = most_tokens(model, most, in_messages=joins_plainly(model.folder))
    return model.ids(bare=True) | {"max_tokens": limit}


def _kept(model: Model, asked: Any, whole: int) -> int | None:
    """How many numbers of a vector of `whole` are kept behind all modules; None for all.

    asked: by the user, or `truncate_dim`.  Raises BadCheckpoint.
    """
    if asked is None:
        return None
    if type(asked) is not int or asked < 1:
        raise BadCheckpoint(f"{model.folder}: truncate_dim must be a whole number above 0, got {asked!r}")
    return asked if asked < whole else None
