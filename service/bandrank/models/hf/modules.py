"""The modules of sentence-transformers and PyLate in a folder (modules.json), none of whose own code is run."""

from collections.abc import Iterable
from pathlib import Path

from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.files import transformer_settings
from bandrank.models.hf.model import Model
from bandrank.models.hf.static import MODULE

LIBRARIES = ("sentence_transformers", "pylate")
OF_JINA = "custom_st.Transformer"  # reads a text as the library's does, with a task's adapter
OF_CLASSES = [f"{part}_{kind}" for part in ("model", "config", "tokenizer", "processor") for kind in ("args", "kwargs")]
HARMLESS = {
    *("add_pooling_layer", "attn_implementation", "dtype", "torch_dtype", "trust_remote_code", "unpad_inputs"),
    *("padding_side", "use_fast", "use_memory_efficient_attention"),
}
COMPUTED = ("last_hidden_state", "logits")
VECTOR = "sentence_embedding"  # the name of the pooled one
KIND, TASK = "SentenceTransformer", "feature-extraction"


def read_modules(model: Model) -> list[str]:
    """The class names of a folder's modules in order; none without a modules.json.

    Raises BadCheckpoint for other code than the libraries', and for a transformer in another folder, unless it is a
    bi-encoder's, with settings beside config.json, or with other states than the last.
    """
    path = model.root / "modules.json"
    if not (modules := read_json(path) if path.is_file() else []):
        return []
    types = [module["type"] for module in modules]
    names = class_names(model, types)
    if OF_JINA in types and any(model.folder.glob("**/adapter_config.json")):
        raise model.refuse("adapters for tasks in folders of their own are not supported")
    place = modules[0].get("path")
    if place and (model.root / place != model.folder or not {"Pooling", MODULE} & {*names}):
        raise model.refuse(f"a transformer in {place!r} is not supported: only a bi-encoder may have a folder for it")
    require_usual_states(model)
    return names


def require_two_routes(model: Model) -> None:
    """Raises BadCheckpoint for a Router with other routes than for queries and for documents, or with mappings."""
    router = read_object(model.root / "router_config.json")
    routes, mappings = sorted(router["structure"]), (router.get("parameters") or {}).get("route_mappings") or {}
    if routes != ["document", "query"] or mappings:
        raise model.refuse(f"a Router with the routes {routes} and the route_mappings {mappings} is not supported")


def require_usual_states(model: Model) -> None:
    """Raises BadCheckpoint for a transformer with settings beside config.json, or with other states than the last."""
    settings = transformer_settings(model.folder)
    other = {name: settings[name] for name in OF_CLASSES if (settings.get(name) or {}).keys() - HARMLESS}
    for name, each in (settings.get("modality_config") or {}).items():
        output = each.get("method_output_name", COMPUTED[0])
        if name in ("text", "message") and (each.get("method", "forward") != "forward" or output not in COMPUTED):
            other[name] = each
    if other:
        raise model.refuse(f"a transformer that is loaded with {other} is not supported")


def class_names(model: Model, types: Iterable[str]) -> list[str]:
    """The class names of modules. Raises BadCheckpoint for one of other code than the libraries'."""
    types = [*types]
    if own := [each for each in types if each.partition(".")[0] not in LIBRARIES and each != OF_JINA]:
        raise model.refuse(f"modules of code of its own ({', '.join(own)}), which is not run, are not supported")
    return [each.rpartition(".")[2] for each in types]


def require_bi_encoder(model: Model) -> None:
    """Raises BadCheckpoint for a model of another kind or task, whose modules may be those of a bi-encoder."""
    kind = read_object(model.root / "config_sentence_transformers.json", optional=True).get("model_type", KIND)
    task = transformer_settings(model.folder).get("transformer_task", TASK)
    if (kind, task) != (KIND, TASK):
        raise model.refuse(f"a {kind} for {task} with a Pooling module is not supported")


def require_on_vector(folder: Path, written: str = VECTOR) -> None:
    """Raises ValueError for a module that reads anything but the pooled vector, or writes anything but `written`."""
    settings = read_object(folder / "config.json", optional=True)
    for key, expected in (("module_input_name", VECTOR), ("module_output_name", written)):
        if (found := settings.get(key) or expected) != expected:
            raise ValueError(f"{folder.name}: {key} {found!r} is not supported, only {expected!r}")
