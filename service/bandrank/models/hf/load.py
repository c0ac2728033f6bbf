"""Loads a model folder in Hugging Face's format: the family by `model_type`, the role by the other files and keys."""

from pathlib import Path

from bandrank.models.checkpoint import BadCheckpoint, read_object
from bandrank.models.hf import bi_encoder, colbert, cross_encoder, pylate, sequence_cross_encoder
from bandrank.models.hf.bert import BERT
from bandrank.models.hf.files import read_weights
from bandrank.models.hf.model import SUPPORTED, Family, Model
from bandrank.models.hf.modernbert import MODERNBERT
from bandrank.models.scorer import Scorer

FAMILIES: dict[str, Family] = {"bert": BERT, "modernbert": MODERNBERT}  # by the `model_type` of config.json


def load(folder: Path) -> Scorer:
    """The scorer in a Hugging Face model folder, on the CPU, in the dtype it was saved in. Raises BadCheckpoint."""
    settings = read_object(folder / "config.json")
    family = FAMILIES.get(str(kind := settings.get("model_type")))
    if family is None:
        raise BadCheckpoint(f"{folder}: model_type {kind!r} is not supported; {SUPPORTED}")
    try:
        weights = {name.removeprefix(family.prefix): tensor for name, tensor in read_weights(folder).items()}
        model = Model(folder, family, settings, weights, family.read_config(settings, weights))
        modules = bi_encoder.modules(folder)
        if modules == sequence_cross_encoder.CHAIN and family.one_text:
            return sequence_cross_encoder.read_chain(model)
        if modules == pylate.MODULES:
            return pylate.read(model)
        if "Pooling" in modules:
            return bi_encoder.read(model, modules)
        if "HF_ColBERT" in (settings.get("architectures") or []):
            return colbert.read(model)
        return sequence_cross_encoder.read(model) if family.one_text else cross_encoder.read(model)
    except KeyError as error:
        raise BadCheckpoint(f"{folder}: the weights have no tensor {error}") from error
    except ValueError as error:
        raise error if isinstance(error, BadCheckpoint) else BadCheckpoint(f"{folder}: {error}") from error
