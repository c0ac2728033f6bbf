"""Bi-encoders as sentence-transformers saves them: modules in order, each with its own settings."""

from pathlib import Path

from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.checkpoint import BadCheckpoint, assemble, read_json, read_object
from bandrank.models.hf.model import Model
from bandrank.models.hf.prompts import query_wording
from bandrank.models.hf.qwen import MOST_DECODER_TOKENS, frame
from bandrank.models.scorer import Scorer


def modules(folder: Path) -> list[str]:
    """The class names of a folder's modules in order; none without a modules.json. Raises BadCheckpoint."""
    path = folder / "modules.json"
    return [module["type"].rsplit(".", 1)[-1] for module in read_json(path)] if path.is_file() else []


def read(model: Model, modules: list[str]) -> Scorer:
    """The bi-encoder that these modules make. Raises BadCheckpoint, ValueError, and KeyError for a missing tensor."""
    folder, encoder = model.folder, model.encoder
    if modules not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise model.refuse(f"modules {modules} are not supported, only Transformer, Pooling and Normalize")
    pooling = read_json(folder / "1_Pooling" / "config.json")
    # A switch for each mode or, since sentence-transformers 6, the name of one.
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    modes |= {pooling["pooling_mode"]} if "pooling_mode" in pooling else set()
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "mean": "mean", "cls": "cls"}
    known |= {"pooling_mode_lasttoken": "last", "lasttoken": "last"} if encoder.causal else {}
    if len(modes) != 1 or not modes <= known.keys():
        supported = " or ".join(dict.fromkeys(known.values()))
        raise BadCheckpoint(f"{folder}: pooling {sorted(map(str, modes))} is not supported, only {supported}")
    library, transformer, tokenizer = (
        read_object(folder / f"{name}.json", optional=True)
        for name in ("config_sentence_transformers", "sentence_bert_config", "tokenizer_config")
    )
    normalised = "Normalize" in modules or library.get("similarity_fn_name") == "cosine"
    limit = transformer.get("max_seq_length") or tokenizer.get("model_max_length") or encoder.max_positions
    most = min(encoder.max_positions, MOST_DECODER_TOKENS) if encoder.causal else encoder.max_positions
    config = BiEncoderConfig(
        **(frame(model) if encoder.causal else model.ids("cls", "sep")),
        encoder=encoder,
        pooling=known[modes.pop()],  # type: ignore[arg-type]  # one of the literals
        similarity="cosine" if normalised else "dot",
        max_tokens=min(int(limit), most),
        query_wording=query_wording(library),
    )
    return assemble(BiEncoder, config, model.encoder_weights, source=str(folder))
