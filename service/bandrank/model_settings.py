"""Several models to serve, read from a TOML file or a folder of checkpoints."""

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from bandrank.dtypes import DtypeName
from bandrank.errors import BadSetting

Dtype = Literal["auto", DtypeName]
Similarity = Literal["auto", "cosine", "dot"]


class ModelSettings(BaseModel, frozen=True, extra="forbid"):
    """A model to serve.

    name: the name that requests use.  aliases: other names that they may use, such as those in a service that this one
    replaces.  The other fields are the settings of the same name.
    """

    name: str = Field(min_length=1)
    model: str = Field(min_length=1)
    revision: str = ""
    fast_model: str = ""
    fast_revision: str = ""
    cascade_depth: PositiveInt
    dtype: Dtype
    first_stage_weight: float = Field(default=0.0, ge=0, le=1)
    pooled: bool = False
    similarity: Similarity = "auto"
    vector_size: NonNegativeInt = 0
    aliases: tuple[str, ...] = ()


class _ModelsFile(BaseModel, extra="forbid"):
    models: tuple[ModelSettings, ...] = Field(min_length=1)


def read_models(path: Path, **shared: Any) -> tuple[ModelSettings, ...]:
    """The models in a TOML file, in its order, or the checkpoints in a folder, sorted by name.

    A file has a table [[models]] for each model, with `name`, `model` and any other field of ModelSettings. Folders are
    relative to the file; a folder beside it takes precedence over a shipped name or hub id of the same spelling.
    shared: fields of ModelSettings that each model has by default.  Raises BadSetting.
    """
    if path.is_dir():
        folders = sorted(config.parent for config in path.glob("*/config.json"))
        if not folders:
            raise BadSetting(str(path), "must hold a folder for each checkpoint: none in it has a config.json")
        return tuple(ModelSettings(name=folder.name, model=str(folder), **shared) for folder in folders)
    content = read_toml(path)
    if isinstance(tables := content.get("models"), list):
        content["models"] = [shared | table if isinstance(table, dict) else table for table in tables]
    try:
        models = _ModelsFile.model_validate(content).models
    except ValidationError as error:
        wrong = error.errors()[0]
        raise refusal(f"{path}: {location(wrong['loc'])}", wrong) from None
    owners: dict[str, int] = {}
    for index, model in enumerate(models):
        for name in (model.name, *model.aliases):
            if owners.setdefault(name, index) != index:
                field = "name" if name == model.name else "aliases"
                raise BadSetting(f"{path}: models[{index}].{field}", f"must differ from the others, got {name!r} again")
    return tuple(
        model.model_copy(update={key: _located(getattr(model, key), path.parent) for key in ("model", "fast_model")})
        for model in models
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises BadSetting."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadSetting(str(path), f"is not valid TOML: {error}") from error


def refusal(name: str, error: ErrorDetails) -> BadSetting:
    """The BadSetting for an error that pydantic reports, without the value of a URL, which may hold a password."""
    if error["type"] == "missing":
        return BadSetting(name, "is missing")
    if error["type"] == "extra_forbidden":
        return BadSetting(name, "is not a setting; check its spelling")
    reason = re.sub(r"^(\w+ should|Value error, must)", "must", error["msg"])
    reason = re.sub(r"(, unable| after validation).*", "", reason).replace("valid tuple", "list")
    return BadSetting(name, reason if "redis_url" in error["loc"] else f"{reason}, got {error['input']!r}")


def location(parts: tuple[int | str, ...]) -> str:
    """Writes ("models", 1, "dtype") as models[1].dtype."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _located(model: str, folder: Path) -> str:
    path = (folder / model).absolute()
    return str(path) if model.startswith(".") or (model and path.is_dir()) else model
