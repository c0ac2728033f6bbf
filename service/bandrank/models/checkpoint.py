"""A scorer saved as a folder: config.json, model.safetensors, tokenizer.json. Loading runs no code from the folder.

A change of the layout is made here, and raises FORMAT.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import nn
from torch.overrides import TorchFunctionMode

from bandrank.dtypes import DtypeName
from bandrank.models import compact
from bandrank.models.architectures import ARCHITECTURES
from bandrank.models.fusion import Fusion
from bandrank.models.plain import Parsed, parse
from bandrank.models.quantised import linear_layers
from bandrank.models.scorer import Scorer
from bandrank.models.sharing import Shared, bring_back, folder_of, leave_out

FORMAT = 1
TOKENIZER = "tokenizer.json"
AnyScorer = TypeVar("AnyScorer", bound=Scorer)


@dataclass(frozen=True)
class Precision:
    """How a scorer fares in dtypes other than float32, as `bandrank_training quantise` has measured it.

    fit: the dtypes in which it ranks as well.  exact_layers: names of the encoder's linear layers that int8 leaves in
    float32, because scores would change too much.
    """

    fit: tuple[DtypeName, ...] = ()
    exact_layers: tuple[str, ...] = ()


MEASURED = tuple(field.name for field in fields(Precision))


class BadCheckpoint(ValueError):
    """The folder holds no scorer that can be loaded; the message says what it holds and what is supported."""


def save(
    scorer: Scorer,
    folder: Path,
    *,
    tokenizer: Path | bytes,
    fusion: Fusion | None = None,
    int8: tuple[str, ...] | None = None,
    share: str | None = None,
) -> None:
    """Writes `scorer` and `tokenizer` into `folder`, which is created if it does not exist.

    tokenizer: a file, or the content of one.
    int8: None keeps the dtypes of the weights; otherwise matrices whose name contains one of `int8` become int8 rows,
    and all other weights float16 (compact.py).  share: the name of a shipped checkpoint; weights that equal its own are
    left out, and so is the tokenizer if it is the same.
    Raises TooLarge for a weight that is not finite or that float16 cannot hold, ValueError if `share` does not ship.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {"bandrank_format": FORMAT, "architecture": scorer.architecture, **asdict(scorer.config)}
    if fusion is not None:
        config["fusion"] = asdict(fusion)
    if scorer.exact_layers:
        config["exact_layers"] = sorted(scorer.exact_layers)
    weights = scorer.state_dict() if int8 is None else compact.pack(scorer.state_dict(), int8=int8)
    if share is not None:
        weights, shared = leave_out(weights, share)
        config["shared"] = asdict(shared)
    path, content = folder / "config.json", (json.dumps(config, indent=2) + "\n").encode()
    written, pieces = folder / TOKENIZER, tokenizer if isinstance(tokenizer, bytes) else tokenizer.read_bytes()
    others = {path: content, written: pieces}
    with whole(folder / "model.safetensors") as partial:
        # Not save_file, which writes files that only their owner may read: a container serves as another user.
        partial.write_bytes(serialise({name: each.contiguous() for name, each in weights.items()}))
        if any(not file.is_file() or file.read_bytes() != new for file, new in others.items()):
            path.unlink(missing_ok=True)  # if the process is killed now, no new weights are left with old files
    if share is not None and (tokenizer_folder(folder_of(share)) / TOKENIZER).read_bytes() == pieces:
        written.unlink(missing_ok=True)
    else:
        write_whole(written, pieces)
    write_whole(path, content)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file through `whole`."""
    with whole(path) as partial:
        partial.write_bytes(content)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields the path to write a new file to, which replaces the old one at the end of the block.

    The old file stays intact until then, and for as long as a process has it mapped: a process that serves weights from
    a file that is overwritten would change its scores or crash. A block that fails leaves nothing behind, which gives a
    full disk its room back, and an OSError without a file name gets `path` as its name.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())  # or a power failure could leave an empty file under the name
        partial.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def tokenizer_folder(folder: Path) -> Path:
    """The folder with the tokenizer of the scorer in `folder`: itself, or the shipped checkpoint whose weights it
    shares.

    Raises BadCheckpoint.
    """
    shared = read_object(folder / "config.json").get("shared")
    if shared is None or (folder / TOKENIZER).is_file():
        return folder
    of_config = f"{folder / 'config.json'}: shared"
    try:
        return tokenizer_folder(folder_of(_parse(Shared, shared, of_config).checkpoint))
    except ValueError as error:
        raise BadCheckpoint(f"{of_config}: {error}") from error


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` was written by `save`, and not by Hugging Face's libraries. Raises BadCheckpoint."""
    return "bandrank_format" in read_object(folder / "config.json", optional=(folder / "modules.json").is_file())


def load(folder: Path) -> Scorer:
    """The scorer saved in `folder`, on the CPU, in float32. Raises BadCheckpoint."""
    config = read_object(folder / "config.json")
    if config.pop("bandrank_format", None) != FORMAT:
        raise BadCheckpoint(f"{folder}: not a bandrank checkpoint of format {FORMAT}")
    precision = load_precision(folder)
    for read_elsewhere in ("fusion", *MEASURED):
        config.pop(read_elsewhere, None)
    shared = config.pop("shared", None)
    name = config.pop("architecture", None)
    if name not in ARCHITECTURES:
        raise BadCheckpoint(f"{folder}: architecture {name!r} is unknown; there are {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[name]
    parsed = _parse(architecture.config_class, config, str(folder / "config.json"))
    path = folder / "model.safetensors"
    try:
        weights = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise unread(path, error) from error
    if shared is not None:
        of_config = f"{folder / 'config.json'}: shared"
        try:
            weights = bring_back(weights, _parse(Shared, shared, of_config))
        except (ValueError, SafetensorError) as error:
            raise BadCheckpoint(f"{of_config}: {error}") from error
    scorer = assemble(architecture, parsed, compact.unpack(weights), source=str(folder))
    scorer.exact_layers = frozenset(precision.exact_layers)
    if unknown := sorted(scorer.exact_layers - linear_layers(scorer).keys()):
        raise BadCheckpoint(f"{folder / 'config.json'}: exact_layers: the encoder has no linear layer {unknown[0]}")
    return scorer


def load_fusion(folder: Path) -> Fusion | None:
    """The fusion that the scorer in `folder` was trained for, or None. Raises BadCheckpoint."""
    path = folder / "config.json"
    saved = read_object(path).get("fusion")
    return None if saved is None else _parse(Fusion, saved, f"{path}: fusion")


def load_precision(folder: Path) -> Precision:
    """The precision saved with the scorer in `folder`; empty by default. Raises BadCheckpoint."""
    path = folder / "config.json"
    config = read_object(path)
    return _parse(Precision, {name: config[name] for name in MEASURED if name in config}, str(path))


def save_precision(folder: Path, precision: Precision) -> None:
    """Writes `precision` into the config.json of the scorer in `folder`, in place of any earlier one."""
    path = folder / "config.json"
    config = {name: value for name, value in read_object(path).items() if name not in MEASURED}
    config |= {name: list(values) for name, values in asdict(precision).items() if values}
    write_whole(path, (json.dumps(config, indent=2) + "\n").encode())


class _Undrawn(TorchFunctionMode):
    """Draws no random weights: on the device "meta", torch would import its compiler for it, which takes a second."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def assemble(architecture: type[AnyScorer], config: Any, weights: dict[str, torch.Tensor], *, source: str) -> AnyScorer:
    """A scorer of this config with these weights, in eval mode. Raises BadCheckpoint if names or shapes do not fit.

    config: an instance of the architecture's `config_class`.  source: named in the error.
    """
    with torch.device("meta"), _Undrawn():
        scorer = architecture(config)
    expected = {name: tensor.shape for name, tensor in scorer.state_dict().items()}
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    wrong = [name for name in sorted(expected.keys() & weights.keys()) if expected[name] != weights[name].shape]
    if missing or extra or wrong:
        found = {"missing": missing, "unexpected": extra, "of another shape": wrong}
        listed = ", ".join(f"{kind}: {names[:4]}" for kind, names in found.items() if names)
        raise BadCheckpoint(f"{source}: the weights do not fit its config.json; {listed}")
    scorer.load_state_dict(weights, assign=True)
    return scorer.eval()


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises BadCheckpoint if it is missing, not JSON, or may not be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{path.parent}: no {path.name}; a model folder needs config.json, weights and a tokenizer"
        ) from None
    except OSError as error:
        raise unread(path, error) from error
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path}: not JSON: {error}") from error


def unread(path: Path, error: Exception) -> BadCheckpoint:
    """The error for a file that was not read. safetensors reports a file without read permission as missing, and writes
    files that only their owner may read.
    """
    try:
        path.open("rb").close()
    except PermissionError:
        return BadCheckpoint(f"{path}: this process (user {os.geteuid()}) may not read it")
    except OSError:
        pass
    return BadCheckpoint(f"{path}: missing or damaged: {error}")


def read_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file; empty if an optional file is missing. Raises BadCheckpoint."""
    content = {} if optional and not path.is_file() else read_json(path)
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{path}: expected a JSON object")
    return content


def _parse(kind: type[Parsed], value: Any, source: str) -> Parsed:
    try:
        return parse(kind, value)
    except (TypeError, ValueError) as error:
        raise BadCheckpoint(f"{source}: {error}") from error
