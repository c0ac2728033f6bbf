"""Loads a model folder in Hugging Face's format: `model_type` tells the family; other files and keys, the role."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from bandrank.models.architectures.bi_encoder import Similarity
from bandrank.models.checkpoint import BadCheckpoint, read_json, read_object
from bandrank.models.hf import (
    bi_encoder,
    colbert,
    cross_encoder,
    decoder_reranker,
    multi_vector,
    pylate,
    sequence_cross_encoder,
    splade,
)
from bandrank.models.hf.bert import BERT
from bandrank.models.hf.deberta import DEBERTA
from bandrank.models.hf.distilbert import DISTILBERT
from bandrank.models.hf.electra import ELECTRA
from bandrank.models.hf.embedding_gemma2 import EMBEDDING_GEMMA2
from bandrank.models.hf.eurobert import EUROBERT, ULTRABERT
from bandrank.models.hf.files import MODEL2VEC, ROUTER, module_chain, own_class, read_weights, transformer_folder
from bandrank.models.hf.gemma import GEMMA
from bandrank.models.hf.gemma3 import GEMMA3
from bandrank.models.hf.gte import GTE
from bandrank.models.hf.jina_bert import CODE as JINA
from bandrank.models.hf.jina_bert import JINA_BERT
from bandrank.models.hf.llama import LLAMA, SAVED_LLAMA
from bandrank.models.hf.model import SUPPORTED, Family, Model
from bandrank.models.hf.modernbert import MODERNBERT
from bandrank.models.hf.modules import read_modules, require_two_routes
from bandrank.models.hf.monot5 import T5
from bandrank.models.hf.mpnet import MPNET
from bandrank.models.hf.nomic_bert import NOMIC_BERT
from bandrank.models.hf.qwen import QWEN
from bandrank.models.hf.roberta import FLASH, FLASH_ROBERTA, JINA_3, ROBERTA
from bandrank.models.hf.settings import AS_PUBLISHED, require_sizes
from bandrank.models.hf.static import MODULE, STATIC
from bandrank.models.scorer import Scorer

FAMILIES: dict[str, Family] = {  # by the `model_type` of config.json
    "bert": BERT,
    "camembert": ROBERTA,
    "deberta-v2": DEBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "embedding_gemma2": EMBEDDING_GEMMA2,
    "embedding_gemma2_text": EMBEDDING_GEMMA2,
    "eurobert": EUROBERT,
    "gemma": GEMMA,
    "gemma3_text": GEMMA3,
    "gte": GTE,
    JINA_3: FLASH_ROBERTA,
    "llama": SAVED_LLAMA,
    "llama_bidirec": LLAMA,
    "ministral3": SAVED_LLAMA,
    "mistral": SAVED_LLAMA,
    MODEL2VEC: STATIC,
    "modernbert": MODERNBERT,
    "mpnet": MPNET,
    "mt5": T5,
    "new": GTE,
    "nomic_bert": NOMIC_BERT,
    "qwen2": QWEN,
    "qwen3": QWEN,
    "roberta": ROBERTA,
    "t5": T5,
    "ultrabert": ULTRABERT,
    "xlm-roberta": ROBERTA,
}
OF_VECTORS = (".Pooling", f".{MODULE}")  # the types of modules, of which a bi-encoder has one
FAMILIES_OF_CODE: dict[str, Family] = {  # by the config class in the authors' own code
    FLASH: FLASH_ROBERTA,
    JINA: JINA_BERT,
}


def load(folder: Path, *, name: str = "", similarity: Similarity | None = None, size: int | None = None) -> Scorer:
    """The scorer in a Hugging Face model folder, on the CPU, in the dtype it was saved in. Raises BadCheckpoint.

    name: the name by which it was asked for, such as its hub id; by default the folder's.  similarity: how a bi-encoder
    compares vectors, and size: how many of their numbers it keeps at most, whatever its folder says.
    """
    root = folder

    def read(route: str) -> Model:
        nonlocal folder  # of errors
        folder = transformer_folder(root, route)
        settings = _settings(root, folder, route)
        family = FAMILIES_OF_CODE.get(own_class(settings)) or FAMILIES.get(str(settings.get("model_type")))
        if family is None:
            raise BadCheckpoint(f"{root}: {_unknown(root, settings)} not supported; {SUPPORTED}")
        require_sizes(settings)
        saved = read_weights(folder)
        prefix = next((each for each in family.prefixes if any(name.startswith(each) for name in saved)), "")
        weights = {name.removeprefix(prefix): tensor for name, tensor in saved.items()}
        encoder = family.read_config(settings, weights)
        return Model(
            root,
            folder,
            family,
            settings,
            weights,
            encoder,
            headless=not prefix,
            name=name or root.name,
            similarity=similarity,
            size=size,
        )

    try:
        model = read("document")
        modules = read_modules(model)
        if modules[:1] == [ROUTER] and any(each.endswith(OF_VECTORS) for each, _ in module_chain(root)):
            require_two_routes(model)
            return bi_encoder.read(model, read("query"))
        return _in_its_role(model, modules)
    except KeyError as error:
        raise BadCheckpoint(f"{folder}: the weights have no tensor {error}") from error
    except StrictDataclassError as error:  # from transformers' classes, with which some families read settings
        raise BadCheckpoint(f"{folder / 'config.json'}: {error}; {SUPPORTED}") from error
    except (ArithmeticError, AttributeError, IndexError, TypeError) as error:
        reason = f"a setting in its files is of a wrong kind ({error}); {AS_PUBLISHED}"
        raise BadCheckpoint(f"{folder}: {reason}") from error
    except RuntimeError as error:  # from torch
        raise BadCheckpoint(f"{folder}: the weights do not load: {error}") from error
    except ValueError as error:
        raise error if isinstance(error, BadCheckpoint) else BadCheckpoint(f"{folder}: {error}") from error


def _settings(root: Path, folder: Path, route: str) -> dict[str, Any]:
    """The keys of config.json, which static embeddings do without."""
    chain = module_chain(root, route)
    settings = read_object(folder / "config.json", optional=bool(chain))
    is_static = chain and chain[0][0].endswith(f".{MODULE}")
    return settings | {"model_type": MODEL2VEC} if is_static else settings


def _unknown(folder: Path, settings: dict[str, Any]) -> str:
    """What a folder has instead of a known transformer: another, or none."""
    if {"auto_map", "model_type"} & settings.keys() or not (path := folder / "modules.json").is_file():
        return f"model_type {settings.get('model_type')!r} is"
    names = [module["type"].rpartition(".")[2] for module in read_json(path)]
    return f"modules {names} without a transformer in the folder itself are"


def _in_its_role(model: Model, modules: list[str]) -> Scorer:
    """Reads the scorer, whose role the modules of sentence-transformers or PyLate tell, if there are any."""
    if modules == sequence_cross_encoder.CHAIN and model.family is MODERNBERT:
        return sequence_cross_encoder.read_chain(model)
    if "Pooling" in modules or model.family is STATIC:
        return bi_encoder.read(model)
    if splade.is_splade(modules):
        return splade.read(model, modules)
    if "ForTokenClassification" in "".join(model.settings.get("architectures") or []):
        raise model.refuse("a model that labels single tokens is no re-ranker")
    if tasks := model.settings.get("lora_adaptations"):
        raise model.refuse(f"adapters for {tasks} are not supported but in a bi-encoder of sentence-transformers")
    if read := _of_colbert(model, modules):
        if model.encoder.causal:
            raise model.refuse("a decoder as a ColBERT is not supported")
        if model.family.projection:
            raise model.refuse("a ColBERT of states that the encoder projects is not supported")
        return read(model)
    if model.encoder.causal:
        return decoder_reranker.read(model, modules)
    if modules not in ([], ["Transformer"]):
        raise model.refuse(f"modules {modules} are not supported")
    read_reranker = model.family.read_reranker or cross_encoder.read
    return read_reranker(model)


def _of_colbert(model: Model, modules: list[str]) -> Callable[[Model], Scorer] | None:
    """The function that reads a ColBERT, by the library that saved it; None for another model."""
    projecting = ["Transformer", *["Dense"] * modules.count("Dense")]
    if "Dense" in modules and modules == [*projecting, *multi_vector.BEHIND]:
        return multi_vector.read
    if "Dense" in modules and modules == projecting:
        return pylate.read
    return colbert.read if "HF_ColBERT" in (model.settings.get("architectures") or []) else None
