"""The modules of sentence-transformers and PyLate in a folder (modules.json), none of whose own code is run."""

from bandrank.models.checkpoint import read_json, read_object
from bandrank.models.hf.files import transformer_settings
from bandrank.models.hf.model import Model

LIBRARIES = ("sentence_transformers", "pylate")
OF_JINA = "custom_st.Transformer"  # Jina AI's, which reads a text as the library's does, with a task's adapter
OF_CLASSES = ("model_args", "model_kwargs", "config_args", "config_kwargs")
HARMLESS = {  # they change no score beyond its precision
    *("_attn_implementation", "attn_implementation", "unpad_inputs", "use_memory_efficient_attention"),
    *("add_pooling_layer", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype", "trust_remote_code", "use_cache"),
}
COMPUTED = ("last_hidden_state", "logits")  # of the outputs of transformers' classes
BI_ENCODER, STATES = "SentenceTransformer", "feature-extraction"


def read_modules(model: Model) -> list[str]:
    """The class names of a folder's modules in order; none without a modules.json.

    Raises BadCheckpoint for classes of other code than the libraries', and for a transformer that lies in a folder of
    its own, is loaded with other settings than those of config.json, or gives other states than the last.
    """
    path = model.folder / "modules.json"
    if not path.is_file():
        return []
    modules = read_json(path)
    types = [module["type"] for module in modules]
    if own := [each for each in types if each.partition(".")[0] not in LIBRARIES and each != OF_JINA]:
        raise model.refuse(f"modules of code of its own ({', '.join(own)}), which is not run, are not supported")
    if OF_JINA in types and any(model.folder.glob("**/adapter_config.json")):
        raise model.refuse("adapters for tasks in folders of their own are not supported")
    if (place := modules[0].get("path")) not in ("", ".", None):
        raise model.refuse(f"a transformer in {place!r}, not in the folder itself, is not supported")
    _require_usual(model)
    return [each.rpartition(".")[2] for each in types]


def require_bi_encoder(model: Model) -> None:
    """Raises BadCheckpoint for a model of another kind, whose modules may be those of a bi-encoder, and for the states
    of another task, such as words' logits.
    """
    library = read_object(model.folder / "config_sentence_transformers.json", optional=True)
    if (kind := library.get("model_type", BI_ENCODER)) != BI_ENCODER:
        raise model.refuse(f"a {kind} with a Pooling module is not supported")
    if (task := transformer_settings(model.folder).get("transformer_task", STATES)) != STATES:
        raise model.refuse(f"a Pooling module behind a transformer for {task} is not supported")


def _require_usual(model: Model) -> None:
    settings = transformer_settings(model.folder)
    other = {name: settings[name] for name in OF_CLASSES if (settings.get(name) or {}).keys() - HARMLESS}
    of_inputs = settings.get("modality_config") or {}
    read = {name: of_inputs[name] for name in ("text", "message") if name in of_inputs}
    for name, each in read.items():
        if each.get("method", "forward") != "forward" or each.get("method_output_name", COMPUTED[0]) not in COMPUTED:
            other[f"modality_config.{name}"] = each
    if other:
        raise model.refuse(f"a transformer that is loaded with {other} is not supported")
