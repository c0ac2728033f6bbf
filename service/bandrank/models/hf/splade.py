"""SPLADE as sentence-transformers saves it: a masked language model and a pooling of its logits. They read both sides,
or, behind a Router, documents alone, and queries are read by a table of weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bandrank.models.architectures.splade import Splade, SpladeConfig
from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.files import ROUTER, load_tokenizer, read_weights, transformer_settings
from bandrank.models.hf.limits import most_tokens
from bandrank.models.hf.model import Model
from bandrank.models.hf.modules import class_names
from bandrank.models.hf.prompts import wordings
from bandrank.models.scorer import Scorer

POOLING, TABLE = "SpladePooling", "SparseStaticEmbedding"
TASKS = {"MLMTransformer": "fill-mask", "Transformer": "feature-extraction"}  # by default
POOLINGS = ("max", "sum")
NUM_LOGS = {"relu": 1, "log1p_relu": 2}


@dataclass(frozen=True)
class Parts:
    """The folders of a SPLADE's modules, and the class of its transformer. table: None if the model reads queries."""

    transformer: str
    pooling: Path
    table: Path | None = None


def is_splade(modules: list[str]) -> bool:
    """Whether these modules are read here."""
    return POOLING in modules or modules == [ROUTER]


def read(model: Model, modules: list[str]) -> Scorer:
    """The SPLADE of a folder. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    parts = _routed(model) if modules == [ROUTER] else _chained(model, modules)
    if transformer_settings(model.folder).get("transformer_task", TASKS[parts.transformer]) != "fill-mask":
        raise model.refuse(f"a {parts.transformer} before a {POOLING} that gives no logits is not supported")
    library = read_object(model.root / "config_sentence_transformers.json", optional=True)
    if (similarity := library.get("similarity_fn_name") or "dot") != "dot":
        raise model.refuse(f"sparse vectors that are compared by {similarity} are not supported, only by dot")
    settings = read_object(parts.pooling / "config.json")
    strategy, activation = settings.get("pooling_strategy", "max"), settings.get("activation_function", "relu")
    if strategy not in POOLINGS or activation not in NUM_LOGS:
        raise model.refuse(f"a {POOLING} with {strategy} and {activation} is not supported")
    query, candidate = wordings(library)
    limit = most_tokens(model, model.encoder.max_positions)
    config = SpladeConfig(
        **model.ids(),
        encoder=model.encoder,
        pooling=strategy,
        num_logs=NUM_LOGS[activation],
        most_terms=library.get("max_active_dims"),
        query_table=parts.table is not None,
        query_wording=query,
        candidate_wording=candidate,
        max_query_tokens=limit if parts.table is None else _most_looked_up(model, parts.table),
        max_candidate_tokens=limit,
    )
    table = {} if parts.table is None else {"query_weights": _query_weights(model, parts.table)}
    return model.assemble(Splade, config, model.mlm_head_weights | table)


def _chained(model: Model, modules: list[str]) -> Parts:
    """The parts of a model that reads both sides."""
    if len(modules) != 2 or modules[0] not in TASKS:
        raise model.refuse(f"modules {modules} are not supported, only a transformer and {POOLING}")
    return Parts(modules[0], model.root / read_json(model.root / "modules.json")[1]["path"])


def _routed(model: Model) -> Parts:
    """The parts behind a Router. The transformer's folder has the name "" if it is the root itself."""
    router = read_object(model.root / "router_config.json")
    types, routes = (router.get(name) or {} for name in ("types", "structure"))
    named = dict(zip(types, class_names(model, types.values()), strict=True))
    found = {route: [named.get(each) for each in names] for route, names in routes.items()}
    kinds = {"query": [[TABLE]], "document": [[transformer, POOLING] for transformer in TASKS]}
    fits = found.keys() == kinds.keys() and all(found[route] in kinds[route] for route in kinds)
    if not fits or (router.get("parameters") or {}).get("route_mappings"):
        raise model.refuse(
            f"a Router with {found} is not supported, only {TABLE} for queries, and a transformer with {POOLING} for "
            "documents"
        )
    (query,), (transformer, pooling) = routes["query"], routes["document"]
    if model.root / transformer != model.folder:
        raise model.refuse(f"a transformer in {transformer!r} beside a config.json of another is not supported")
    return Parts(named[transformer], model.root / pooling, model.root / query)


def _most_looked_up(model: Model, folder: Path) -> int:
    """The most tokens of a query that a table reads: the limit of its own tokenizer, or that of positions."""
    most = model.encoder.max_positions
    named = read_object(folder / "tokenizer_config.json", optional=True).get("model_max_length")
    return min(int(named or most), most)


def _query_weights(model: Model, folder: Path) -> Tensor:
    """(vocab_size,) the weights of a query's tokens. Raises BadCheckpoint if they are of other tokens than ours."""
    if path := read_object(folder / "config.json", optional=True).get("path"):
        raise model.refuse(f"weights of queries in {path} are not supported, only in model.safetensors")
    theirs, ours = (json.loads(load_tokenizer(each).to_str()) for each in (folder, model.folder))
    if any(theirs[part] != ours[part] for part in ("model", "normalizer", "pre_tokenizer")):
        raise model.refuse(f"a tokenizer for queries ({folder.name}) that is not that of documents is not supported")
    return read_weights(folder)["weight"].float()
