"""Settings of the service: each a BANDRANK_* environment variable and a flag, read once, passed down as values."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args, get_type_hints

Device = str  # "auto", "cpu", "cuda", "cuda:1", ...
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Kernels = Literal["auto", "cuda", "vectorized"]
CudaGraphs = Literal["auto", "on", "off"]
CacheDtype = Literal["float32", "float16", "int8"]


class BadSetting(ValueError):
    """A setting that cannot be used; the message names it and says what is expected."""


@dataclass(frozen=True)
class Settings:
    """What an operator can set.

    model: a shipped scorer's name, a folder or a hub id; empty for the default one.  revision: of a hub model.
    fast_model: one that precomputes, to go before `model` in a cascade; empty for none, or the one `model` adds to.
    cascade_depth: how many candidates go on to the accurate scorer where no budget says otherwise.
    kernels: what computes attention and norms; "auto" is our CUDA kernels where they can run, else plain torch,
    "vectorized" plain torch, and "cuda" our kernels or nothing.
    cuda_graphs: whether batches are replayed from CUDA graphs; "auto" is where they can be, "on" there or nothing.
    redis_url: of the cache that replicas share; empty to cache in memory alone.  redis_timeout_s: after which a request
    goes on without Redis.  cache_dtype: of cached representations.  cache_ttl_s: how long Redis keeps one; 0 for ever.
    candidate_store_bytes: of texts registered by id, where there is no Redis to hold them.
    max_batch_tokens: rows scored at once; 0 picks 4,096 on a CPU (its batches then stay in the cache) and 32,768 on a
    GPU.  max_waiting_tokens: rows that may wait before requests are turned away.  request_timeout_s: after which a
    request is answered with 504, and beyond which one that would have to wait is turned away at once.
    tokenizer_threads: 0 means one per two cores.
    """

    model: str = ""
    revision: str = ""
    fast_model: str = ""
    fast_revision: str = ""
    cascade_depth: int = 50
    host: str = "0.0.0.0"  # noqa: S104 - a service in a container
    port: int = 8000
    device: Device = "auto"
    dtype: Dtype = "auto"
    kernels: Kernels = "auto"
    cuda_graphs: CudaGraphs = "auto"
    redis_url: str = ""
    redis_timeout_s: float = 0.05
    cache_memory_bytes: int = 256 * 1024 * 1024
    cache_dtype: CacheDtype = "float16"
    candidate_store_bytes: int = 1024 * 1024 * 1024
    cache_ttl_s: float = 7 * 24 * 3600.0
    max_batch_tokens: int = 0
    max_waiting_tokens: int = 2_000_000
    max_candidates: int = 2048
    max_body_bytes: int = 16 * 1024 * 1024
    request_timeout_s: float = 60.0
    token_cache_bytes: int = 64 * 1024 * 1024
    tokenizer_threads: int = 0
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        positive = (
            "max_waiting_tokens",
            "max_candidates",
            "max_body_bytes",
            "request_timeout_s",
            "redis_timeout_s",
            "cascade_depth",
        )
        for name in positive:
            if not getattr(self, name) > 0:  # NaN too
                raise BadSetting(f"{_variable(name)} must be above 0, got {getattr(self, name)}")
        for name in (
            "max_batch_tokens",
            "token_cache_bytes",
            "tokenizer_threads",
            "cache_memory_bytes",
            "cache_ttl_s",
            "candidate_store_bytes",
            "port",
        ):
            if getattr(self, name) < 0:
                raise BadSetting(f"{_variable(name)} must be at least 0, got {getattr(self, name)}")
        if self.port > 65535:
            raise BadSetting(f"{_variable('port')} must be at most 65535, got {self.port}")
        for name, kind in get_type_hints(Settings).items():
            if (choices := get_args(kind)) and getattr(self, name) not in choices:
                raise BadSetting(f"{_variable(name)} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")

    @classmethod
    def read(cls, arguments: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Self:
        """Settings from the environment, overridden by flags such as `--max-batch-tokens`. Raises BadSetting.

        An unknown BANDRANK_* variable is an error: a misspelt setting must not be lost in silence.
        """
        names = {field.name for field in fields(cls)}
        parser = argparse.ArgumentParser(prog="bandrank serve", allow_abbrev=False)
        for name in sorted(names):
            parser.add_argument(
                "--" + name.replace("_", "-"), help=f"or {_variable(name)}; default {getattr(cls, name)!r}"
            )
        flags = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
        known = {_variable(name): name for name in names}
        ours = {key: value for key, value in environ.items() if key.startswith("BANDRANK_") and value != ""}
        if unknown := sorted(ours.keys() - known.keys() - RESERVED):
            raise BadSetting(f"unknown settings {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        texts = {known[key]: value for key, value in ours.items() if key in known} | flags
        values: dict[str, Any] = {name: _convert(name, text, type(getattr(cls, name))) for name, text in texts.items()}
        return cls(**values)


# Variables of the demo and the soak test, which share the prefix.
RESERVED = frozenset({"BANDRANK_DEMO_DATA", "BANDRANK_SOAK_S"})


def _variable(name: str) -> str:
    return "BANDRANK_" + name.upper()


def _convert(name: str, text: str, kind: type) -> str | int | float:
    if kind is str:
        return text
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise BadSetting(f"{_variable(name)} must be a number, got {text!r}") from None
