"""Bi-encoders as sentence-transformers saves them: a list of modules, each with its settings."""

from pathlib import Path

from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.checkpoint import BadCheckpoint, assemble
from bandrank.models.hf.files import read_json, read_optional_json
from bandrank.models.hf.model import Model
from bandrank.models.scorer import Scorer


def modules(folder: Path) -> list[str]:
    """The classes of a folder's modules in order; none if it has no modules.json."""
    path = folder / "modules.json"
    return [module["type"].rsplit(".", 1)[-1] for module in read_json(path)] if path.is_file() else []


def read(model: Model, modules: list[str]) -> Scorer:
    """A bi-encoder of these modules. Raises BadCheckpoint, and KeyError for a tensor that is missing."""
    folder, encoder = model.folder, model.encoder
    if modules not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise model.refuse(f"modules {modules} are not supported, only Transformer, Pooling and Normalize")
    pooling = read_json(folder / "1_Pooling" / "config.json")
    # One switch a mode, or, since sentence-transformers 6, one name.
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    modes |= {pooling["pooling_mode"]} if "pooling_mode" in pooling else set()
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}
    if len(modes) != 1 or not modes <= known.keys():
        raise BadCheckpoint(f"{folder}: pooling {sorted(map(str, modes))} is not supported, only mean or cls")
    similarity = read_optional_json(folder / "config_sentence_transformers.json").get("similarity_fn_name")
    limit = (
        read_optional_json(folder / "sentence_bert_config.json").get("max_seq_length")
        or read_optional_json(folder / "tokenizer_config.json").get("model_max_length")
        or encoder.max_positions
    )
    cls_id, sep_id = model.ids(model.family.cls, model.family.sep)
    config = BiEncoderConfig(
        encoder=encoder,
        cls_id=cls_id,
        sep_id=sep_id,
        pooling=known[modes.pop()],  # type: ignore[arg-type]  # one of the two literals
        similarity="cosine" if "Normalize" in modules or similarity == "cosine" else "dot",
        max_tokens=min(int(limit), encoder.max_positions),
    )
    return assemble(BiEncoder, config, model.encoder_weights, source=str(folder))
