"""The files of a Hugging Face model, in a folder or on the hub; none of the code that they may contain is run."""

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.normalizers import BertNormalizer, Lowercase, Normalizer, Strip
from tokenizers.pre_tokenizers import ByteLevel

from bandrank.models.checkpoint import BadCheckpoint, read_json, read_object, unread
from bandrank.models.placement import name_of
from bandrank.models.shipped import names as shipped_names

# A star matches folders too. A module's weights are small, and may be pickled even if the encoder's are not.
SETTINGS_FILES = ["*.json", "*.txt", "*.model", "chat_template.jinja", "*/pytorch_model.bin", "artifact.metadata"]
SLOW = ("vocab.txt", "merges.txt", SENTENCEPIECE := "*.model")  # files of tokenizers that become fast ones
NO_WEIGHTS = (
    "no model.safetensors and no pytorch_model.bin; of a model that is here only in ONNX, OpenVINO or GGUF, take the "
    "one that it was exported from"
)
MERGE = "load both with peft, call merge_and_unload() and save_pretrained(), and give that folder"
ADAPTER = f"an adapter without the model that it changes; {MERGE}"
BESIDE = (
    "an adapter beside weights, and nothing says whether they contain it; if they do, give a copy of the folder "
    f"without adapter_config.json, else {MERGE}"
)

NUMBERS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

BERTS = ("bert", "distilbert", "electra", "mpnet", "nomic_bert")
NORMALIZER_SETTINGS = {  # the names in tokenizer.json, and the defaults of the classes of BERTs
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
OF_DEBERTA = ("do_lower_case", "split_by_punct")  # would override tokenizer.json
NAMED = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
ROUTER = "Router"  # of sentence-transformers, to modules for queries and for documents
MODEL2VEC = "model2vec"  # of tokenizers beside such a config.json, tokenizer.json is read alone
UNCONFIGURED = {"PreTrainedTokenizerFast", "TokenizersBackend"}  # take tokenizer.json as it is

Weights = dict[str, torch.Tensor]


def find_folder(model: str, revision: str | None = None) -> Path:
    """The local folder of `model`: a folder's path, or a hub id, downloaded unless it is in the hub's cache.

    With HF_HUB_OFFLINE=1, or without a network, only the cache is searched. Raises BadCheckpoint if there is no such
    model, if it cannot be downloaded, or if it has an adapter, alone or beside weights.
    """
    folder = Path(model) if Path(model).is_dir() else _download(model, revision)
    if (folder / "adapter_config.json").is_file():
        weights = {*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")}
        raise BadCheckpoint(f"{folder}: {BESIDE if weights - {folder / 'adapter_model.safetensors'} else ADAPTER}")
    return folder


def _download(model: str, revision: str | None) -> Path:
    if model.startswith((".", "/", "~")):
        raise BadCheckpoint(f"{model}: no such folder")
    ours = "" if "/" in model else f"; shipped are {', '.join(shipped_names())}"

    def download(weights: str) -> Path:
        return Path(snapshot_download(model, revision=revision, allow_patterns=[*SETTINGS_FILES, weights]))

    try:
        folder = download("*.safetensors")
        if not list(folder.glob("*.safetensors")):  # older models have only pickled weights
            folder = download("pytorch_model*.bin")
    except LocalEntryNotFoundError as error:
        raise BadCheckpoint(
            f"{model}: neither a folder nor in the local cache, and the hub cannot be reached (HF_HUB_OFFLINE set, or "
            f"no network); run `hf download {model} --local-dir FOLDER` where it can, and give the folder instead{ours}"
        ) from error
    except GatedRepoError as error:
        raise BadCheckpoint(
            f"{model}: on the hub, but only for those who have accepted its terms; accept them on its page, and set "
            "HF_TOKEN to a token of yours"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise BadCheckpoint(f"{model}: neither a folder nor a model on the hub: {error}{ours}") from error
    except Exception as error:  # of the disk, or of the library's HTTP client, as behind a proxy that refuses
        raise BadCheckpoint(f"{model}: cannot be downloaded: {error}") from error
    return folder


def module_chain(folder: Path, route: str = "document") -> list[tuple[str, Path]]:
    """The types and folders of sentence-transformers' modules, in order; in place of a Router, those of a route.

    Raises BadCheckpoint, and KeyError, AttributeError or TypeError for lists of modules that are none.
    """
    listed = read_json(folder / "modules.json") if (folder / "modules.json").is_file() else []
    modules = [(str(each["type"]), folder / (each.get("path") or "")) for each in listed]
    if not modules or not modules[0][0].endswith(f".{ROUTER}"):
        return modules
    router = read_object(folder / "router_config.json")
    types, routes = (router.get(name) or {} for name in ("types", "structure"))
    return [*((str(types.get(name)), folder / name) for name in routes.get(route) or []), *modules[1:]]


def transformer_folder(folder: Path, route: str = "document") -> Path:
    """The folder with a model's config.json, weights and tokenizer: its own, or that of sentence-transformers' first
    module, or of a Router's first module for a route. Raises as `module_chain`.
    """
    chain = module_chain(folder, route)
    first = chain[0][1] if chain else folder
    return first if first.parent == folder and first.is_dir() else folder


def transformer_settings(folder: Path) -> dict[str, Any]:
    """The settings of a folder's transformer in sentence-transformers, such as max_seq_length; empty without a file of
    them. Raises BadCheckpoint.
    """
    # Earlier versions put the family's name into the file's: sentence_xlm-roberta_config.json.
    paths = [folder / "sentence_bert_config.json", *sorted(folder.glob("sentence_*_config.json"))]
    return read_object(next((path for path in paths if path.is_file()), paths[0]), optional=True)


def own_class(settings: Mapping[str, Any]) -> str:
    """The config class in a model's own code, such as ZEConfig; empty if there is none."""
    named = settings.get("auto_map")
    return str(named.get("AutoConfig", "")).rpartition(".")[2] if isinstance(named, dict) else ""


def load_tokenizer(folder: Path, *, strip: bool = False) -> Tokenizer:
    """The folder's fast tokenizer, with truncation and padding switched off. Raises BadCheckpoint.

    strip: whether it strips white space around texts (`Scorer.strips_texts`).
    """
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise BadCheckpoint(f"{path}: damaged: {error}") from error
    elif any(any(folder.glob(name)) for name in SLOW):
        tokenizer = _converted(folder)
    else:
        raise BadCheckpoint(f"{folder}: no tokenizer.json and no vocab.txt")
    settings = read_object(folder / "config.json", optional=True)
    if settings.get("model_type") != MODEL2VEC:
        _configure(tokenizer, folder)
        _add_tokens(tokenizer, folder)
    first: list[Normalizer] = [Lowercase()] if transformer_settings(folder).get("do_lower_case") else []
    if strip:
        first.append(Strip())
    if first:
        steps = first if tokenizer.normalizer is None else [*first, tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _converted(folder: Path) -> Tokenizer:
    """A fast tokenizer made from the files of a slow one.

    Raises BadCheckpoint if the library cannot make it, as when it is written in Python and needs a package that splits
    words (vinai/phobert-base), or if it has no vocabulary, because the file that its class reads is missing.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415  # takes half a second, which few folders need
    from transformers.utils.import_utils import (  # noqa: PLC0415
        is_protobuf_available,
        is_sentencepiece_available,
    )

    failed = f"{folder}: no tokenizer.json, and none can be made of the other files"
    if any(folder.glob(SENTENCEPIECE)) and not (is_sentencepiece_available() and is_protobuf_available()):
        raise BadCheckpoint(f"{failed} without two packages: pip install sentencepiece protobuf")
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).backend_tokenizer
    except Exception as error:  # the packages raise anything, and the library an AttributeError
        raise BadCheckpoint(f"{failed}: {error}") from error
    if tokenizer.get_vocab_size() == len(tokenizer.get_added_tokens_decoder()):
        raise BadCheckpoint(f"{failed}: it would know special tokens alone")
    return tokenizer


def _configure(tokenizer: Tokenizer, folder: Path) -> None:
    """Lets tokenizer_config.json, or the class's defaults, override tokenizer.json, as transformers' tokenizers of BERT
    and RoBERTa do. Raises BadCheckpoint for such settings of DeBERTa's.
    """
    settings, model = (read_object(folder / f"{name}.json", optional=True) for name in ("tokenizer_config", "config"))
    kind = str(settings.get("tokenizer_class") or model.get("model_type"))
    normalizer, splits = tokenizer.normalizer, tokenizer.pre_tokenizer
    if kind.lower().startswith("deberta") and (other := {name: True for name in OF_DEBERTA if settings.get(name)}):
        raise BadCheckpoint(f"{folder}: a DeBERTa's tokenizer with {other} is not supported")
    if isinstance(normalizer, BertNormalizer) and kind not in UNCONFIGURED:
        for name, (ours, default) in NORMALIZER_SETTINGS.items():
            if name in settings or kind.lower().startswith(BERTS):
                setattr(normalizer, ours, settings.get(name, default))
        tokenizer.normalizer = normalizer
    if isinstance(splits, ByteLevel) and kind.lower().startswith("roberta"):
        splits.add_prefix_space = settings.get("add_prefix_space", False)
        tokenizer.pre_tokenizer = splits


def _add_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Adds special tokens that only other files than tokenizer.json name, in transformers' order, on which new ids
    depend; but none such as "pad_token" that the vocabulary lacks, which hardly any text has. Raises BadCheckpoint.
    """
    settings = read_object(folder / "tokenizer_config.json", optional=True)
    if "added_tokens_decoder" not in settings:
        settings |= read_object(folder / "special_tokens_map.json", optional=True)
    listed = sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    named = [_token(settings[name]) for name in NAMED if settings.get(name)]
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    tokens = [_token(token) for _, token in listed]
    tokens += [token for token in named if tokenizer.token_to_id(token.content) is not None]
    tokens += map(_token, extra.values() if isinstance(extra, dict) else extra)
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens([token for token in tokens if token.content not in known])


def _token(saved: str | dict[str, Any]) -> AddedToken:
    if isinstance(saved, str):
        return AddedToken(saved, special=True)
    return AddedToken(**{name: value for name, value in saved.items() if name != "__type"})


def _weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder, of the preferred kind that it has. Raises BadCheckpoint if there are none."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (whole := folder / name).is_file():
            return [whole]
        if (index := folder / f"{name}.index.json").is_file():
            parts = {Path(str(part)).name for part in read_object(index).get("weight_map", {}).values()}
            return [folder / part for part in sorted(parts)]
    raise BadCheckpoint(f"{folder}: {NO_WEIGHTS}")


def read_weights(folder: Path) -> Weights:
    """Tensors by name, from safetensors files or from a pickle whose code is not run. Raises BadCheckpoint, also for
    quantised tensors, which without their scales would be taken for weights.

    Tensors of safetensors files are mapped: those that nobody reads take no memory.
    """
    weights: Weights = {}
    for path in _weight_files(folder):
        try:
            weights |= (
                load_file(path)
                if path.suffix == ".safetensors"
                else torch.load(path, map_location="cpu", weights_only=True)
            )
        except (OSError, SafetensorError) as error:
            raise unread(path, error) from error
        except (UnpicklingError, EOFError, RuntimeError) as error:
            raise BadCheckpoint(f"{path}: damaged, or holds more than tensors: {error}") from error
    for name, tensor in weights.items():
        if name.endswith(("weight", "weight_packed")) and tensor.dtype not in NUMBERS:
            kind = name_of(tensor.dtype)
            raise BadCheckpoint(
                f"{folder}: quantised weights ({kind}, {name}) are not supported; take the model that they were made "
                "of, which can compute in int8 on a CPU"
            )
    # Checkpoints from before 2020 call a LayerNorm's parameters gamma and beta.
    names = {".gamma": ".weight", ".beta": ".bias"}
    return {re.sub(r"\.(gamma|beta)$", lambda match: names[match[0]], name): tensor for name, tensor in weights.items()}
