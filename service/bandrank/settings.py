"""Settings of the service: each is a BANDRANK_* variable, a flag and a key of a file."""

import os
import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict

from bandrank.dtypes import PayloadDtype
from bandrank.errors import BadSetting
from bandrank.logs import LogFormat
from bandrank.model_settings import Dtype, ModelSettings, Similarity, read_models, read_toml, refusal

PREFIX = "BANDRANK_"
# Variables of the demo, of the soak test and of the fuzzer.
RESERVED = frozenset({"BANDRANK_DEMO_DATA", "BANDRANK_SOAK_S", "BANDRANK_FUZZ_EXAMPLES", "BANDRANK_FUZZ_SEED"})
# Kubernetes sets such variables for every service of a namespace, one of which may well be named bandrank.
SERVICE_LINK = re.compile(
    r"BANDRANK_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=|PORT=(tcp|udp|sctp)://).*"
)
WAYS = (
    f"A setting is a flag, else an environment variable ({PREFIX}...), else a key of the TOML file that --config names."
)
LISTED = "`bandrank serve --help` lists all settings"
SINGLE_MODEL = frozenset({"model", "revision", "fast_model", "fast_revision"})


class Settings(BaseModel):
    """All settings, in the order and the words of `--help` and of docs/settings.md."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    model: str = Field(default="sparse-w4", min_length=1)
    """The scorer: a shipped name, a folder or a hub id."""
    revision: str = ""
    """Revision of the model on the hub."""
    fast_model: str = ""
    """A scorer that precomputes, to run first in a cascade. Empty: the one whose scores the model adds to, if any."""
    fast_revision: str = ""
    """Revision of the fast model on the hub."""
    cascade_depth: PositiveInt = 30
    """How many candidates go on to the accurate scorer, unless a budget says otherwise."""
    first_stage_weight: float = Field(default=0.0, ge=0, le=1)
    """Weight, from 0 to 1, of the scores that candidates come with, unless a request sets it."""
    pooled: bool = False
    """Whether shared words also count by their rarity among a request's candidates, unless a request says."""
    similarity: Similarity = "auto"
    """How a sentence-transformers bi-encoder without a Normalize module compares vectors. `auto`: as its folder says or
    as is known of the model, else by cosine, as that library does."""
    vector_size: NonNegativeInt = 0
    """How many numbers of a served bi-encoder's vectors are kept, from the first (Matryoshka); 0: as its folder
    says."""
    models: str = ""
    """Several models instead of one: a TOML file that lists them, or a folder of checkpoints."""
    shadow_model: str = ""
    """A second model that scores a sample of the answered requests, to measure how far it agrees. The name of a served
    model, a shipped name, a folder or a hub id; empty: none."""
    shadow_strategy: str = ""
    """The strategy of the shadow; empty: that of each request."""
    shadow_share: float = Field(default=0.01, ge=0, le=1)
    """The share of requests that the shadow scores; 0: none, and it is not loaded."""
    unknown_model: Literal["default", "refuse"] = "default"
    """What a request in another service's wire format gets if it names a model that is not served, such as one of that
    service's own: the first model, or 404."""
    host: str = "127.0.0.1"  # a start from a checkout is not meant to serve the network
    """Address to listen on; `::` stands for all IPv6 addresses, without IPv4, and the flag `--host=` for all."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on."""
    keys: str = ""
    """A TOML file of API keys (docs/security.md). Empty: there are no keys, and anyone who can reach the port may
    rank."""
    register_from: Literal["loopback", "anywhere"] = "loopback"
    """Without keys: from where candidates may be registered and deleted."""
    trusted_proxies: str = "127.0.0.1,::1"
    """Proxies whose X-Forwarded-For is trusted: addresses and networks, separated by commas, or `none`."""
    tls_certificate: str = ""
    """A PEM file with the certificate and its chain; the port then speaks only HTTPS."""
    tls_key: str = ""
    """The PEM file of the certificate's private key, unencrypted."""
    device: str = "auto"
    """`auto`: a GPU if there is one, else the CPU; or `cpu`, `cuda`, `cuda:N`."""
    dtype: Dtype = "auto"
    """`auto` on a CPU: `bfloat16` with AMX (or AVX512-BF16 on AMD), else `float32`; or a faster dtype in which the
    checkpoint was measured to rank as well (`int8` for the two that ship), timed at each start. Set a fixed one for
    replicas that must agree to the bit. `auto` on a GPU: `float16`, or `bfloat16` for models that overflow it. `int8`
    is for CPUs, `bfloat16` for CPUs with instructions for it."""
    kernels: Literal["auto", "cuda", "vectorized"] = "auto"
    """`auto`: CUDA kernels if they can run, else plain torch; `cuda`: the kernels, or an error; `vectorized`: plain
    torch."""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """`auto`: batches of a cross-encoder, a MixEncoder or a bi-encoder are replayed from CUDA graphs if the kernels
    run; `on`: the same, or an error; `off`: kernels are launched one by one."""
    awake_ms: float = Field(default=50.0, ge=0, le=60_000)
    """Milliseconds for which a CPU stays awake after a batch, at a priority below all other work, so that the next one
    starts at once (docs/operations.md); 0: it may sleep."""
    max_batch_rows: NonNegativeInt = 0  # 4,096 rows stay in a CPU's cache
    """Rows scored at once; 0: on a CPU 1,024 for each thread, at most a full batch of 4,096; on a GPU 32,768."""
    max_waiting_rows: PositiveInt = 2_000_000
    """Rows that may wait, shared between clients; a request beyond them gets 429."""
    patience: PositiveFloat = 4.0
    """A request may wait for this many times its own work, or that of a full batch or a fifth of a second if that is
    more; if more work goes before it, batches being computed included, it gets 429."""
    request_timeout_s: PositiveFloat = 60.0
    """Seconds after which a request gets 504. If it is expected to take more than half of them because of others before
    it, it gets 429 at once."""
    hang_timeout_s: PositiveFloat = 120.0
    """Seconds that a batch may take before the scoring thread counts as hung: probes fail, and the process ends."""
    max_connections: PositiveInt = 1024
    """Open connections, at most half of them from one address. Beyond that, the connection that has been silent longest
    makes room; if none is silent, a new one gets answers only to probes."""
    max_candidates: PositiveInt = 2048
    """Candidates in a request; a request with more gets 413."""
    max_body_bytes: PositiveInt = 16 << 20
    """Size of a request's body; a larger one gets 413."""
    max_query_characters: PositiveInt = 64 << 10
    """Characters of a query that are read; the rest counts as truncated."""
    max_candidate_characters: PositiveInt = 256 << 10  # 16 for each of the 16,384 tokens of the longest candidate
    """Characters of a candidate that are read; the rest counts as truncated."""
    max_tokenizing_characters: PositiveInt = 64 << 20
    """Characters that may wait to be tokenised, for each scorer, shared between clients; a request beyond them gets
    429."""
    max_in_flight_bytes: PositiveInt = 256 << 20
    """Memory for the bodies, texts and answers of all requests, shared between clients; a request beyond it gets
    429."""
    max_resolved_bytes: PositiveInt = 64 << 20
    """Size of the distinct texts that a request names by id; a request for more gets 413."""
    max_answer_bytes: PositiveInt = 32 << 20
    """Size of the texts in an answer to a request with `return_documents`; a request for more gets 413."""
    max_line_bytes: PositiveInt = 1 << 20
    """Size of a line of candidates to register, and of a text; a larger one ends its request with 413."""
    token_cache_bytes: NonNegativeInt = 64 << 20
    """Size of the cache of token ids of recent texts; scorers with the same tokenizer share one."""
    tokenizer_threads: NonNegativeInt = 0
    """Threads of the tokenizer; 0: one for every two processors that the process may use."""
    redis_url: str = Field(default="", repr=False)
    """URL of the Redis that replicas share, for representations and registered candidates: `redis://`, `rediss://`,
    `unix://`, `redis+cluster://`, `redis+sentinel://`. With `?password_file=PATH` the password is not in the URL."""
    redis_timeout_s: PositiveFloat = 0.05
    """Seconds that Redis may take for each MiB that a request reads; after that, the request goes on without it."""
    cache_dtype: PayloadDtype = "float16"
    """Dtype of cached representations."""
    cache_memory_bytes: NonNegativeInt = 256 << 20
    """Size of the cache of representations in this process, for each scorer."""
    cache_ttl_s: NonNegativeFloat = 7 * 24 * 3600.0
    """Seconds that Redis keeps a representation; 0: forever."""
    candidate_store_bytes: NonNegativeInt = 512 << 20
    """Memory for registered candidates if there is no Redis."""
    proxy_upstream: str = ""
    """`bandrank proxy`: address of the search engine behind it, as in `http://localhost:9200`."""
    proxy_ca: str = ""
    """A PEM file of the authorities that may sign the search engine's certificate; empty: the system's."""
    proxy_rules: str = ""
    """A TOML file that says which searches to re-rank without being asked (docs/search-proxy.md)."""
    proxy_depth: PositiveInt = 100
    """How many hits of a search are re-ranked, unless a header or a rule says otherwise."""
    proxy_budget_ms: PositiveFloat = 1000.0
    """Milliseconds that re-ranking a search may take before it keeps the engine's order, unless a header or a rule says
    otherwise."""
    proxy_timeout_s: PositiveFloat = 300.0
    """Seconds of silence from the search engine after which a request gets 504. After half of them, a search that was
    to be re-ranked is sent again as the client wrote it."""
    proxy_connections: PositiveInt = 128
    """Connections to the search engine, at most half of them for one client alone; a request that gets none within five
    seconds gets 429."""
    proxy_max_response_bytes: PositiveInt = 16 << 20
    """Size of an answer whose hits are re-ranked; a larger answer keeps the engine's order."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    log_format: LogFormat = "text"
    """`text`: a line for each record; `json`: an object on each line."""
    access_log: bool = False
    """Whether each answered request is logged; a flood of requests is then a flood of lines."""
    drain_s: NonNegativeFloat = 0.0
    """Seconds between SIGTERM and closing the port, in which `/readyz` fails and requests are still answered."""
    config: str = ""
    """A TOML file of settings, with the names in this list in lower case and without the prefix."""

    @classmethod
    def read(
        cls,
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
        *,
        command: str = "serve",
        about: str = "",
    ) -> Self:
        """Settings from flags such as `--max-batch-rows`, else the environment, else the file that `config` names.

        An empty BANDRANK_* variable counts as not set, as do those that Kubernetes sets; an unknown one is an error, so
        that misspelt ones are noticed.  command: its name and arguments.  about: what it does, for the help.
        Raises BadSetting.
        """
        known = {variable(name): name for name in cls.model_fields}
        ours = {
            key: value
            for key, value in environ.items()
            if key.startswith(PREFIX) and value and not SERVICE_LINK.fullmatch(f"{key}={value}")
        }
        if unknown := sorted(ours.keys() - known.keys() - RESERVED):
            raise BadSetting(", ".join(unknown), f"is not a setting; {_meant(unknown, variable)}{LISTED}")
        parser = _Parser(
            prog=f"bandrank {command}",
            usage="%(prog)s [--SETTING VALUE ...]",
            description=f"{about} {WAYS}".strip(),
            allow_abbrev=False,
        )
        flags = CliSettingsSource(_Flags, root_parser=parser, cli_parse_args=list(arguments))()
        given: dict[str, Any] = {known[key]: value for key, value in ours.items() if key in known} | flags
        path = given.get("config")
        in_file = read_toml(Path(path)) if path else {}
        if unknown := sorted(in_file.keys() - cls.model_fields.keys()):
            raise BadSetting(f"{path}: {', '.join(unknown)}", f"is not a setting; {_meant(unknown, str)}{LISTED}")
        try:
            return cls(**(in_file | given))
        except ValidationError as error:
            wrong = error.errors()[0]
            name = str(wrong["loc"][0])
            raise refusal(variable(name) if name in given else f"{path}: {name}", wrong) from None

    def served_models(self) -> tuple[ModelSettings, ...]:
        """The models to serve, the default one first. Raises BadSetting if what `models` names cannot be used."""
        if not self.models:
            facts = self.model_dump(include={*ModelSettings.model_fields})
            return (ModelSettings(name=public_name(self.model), **facts),)
        if beside := sorted(map(variable, SINGLE_MODEL & self.model_fields_set)):
            raise BadSetting("models", f"cannot be set beside {', '.join(beside)}")
        shared = self.model_dump(include={*ModelSettings.model_fields} - SINGLE_MODEL)
        return read_models(Path(self.models), **shared)

    def shadow_among(self, served: Sequence[ModelSettings]) -> ModelSettings | None:
        """The shadow: one of the served models, or another one; None if there is none. Raises BadSetting."""
        if not self.shadow_model or not self.shadow_share:
            return None
        by_name = {model.name: model for model in served}
        if self.shadow_model in by_name:
            return by_name[self.shadow_model]
        name = public_name(self.shadow_model)
        if name in by_name:
            raise BadSetting(
                "shadow_model", f"must not have the name of a served model, {name!r}; rename the folder of one of them"
            )
        return ModelSettings(
            name=name,
            model=self.shadow_model,
            cascade_depth=self.cascade_depth,
            dtype=self.dtype,
            similarity=self.similarity,
        )


class _Flags(Settings, BaseSettings):
    """Settings that flags give."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, cli_kebab_case=True, cli_show_env_vars=True)


class _Parser(ArgumentParser):
    """Reports a wrong flag in one line: the usage of all flags would push it off the screen."""

    def error(self, message: str) -> NoReturn:
        unknown = re.findall(r"--[\w-]+", message) if message.startswith("unrecognized") else []
        raise BadSetting(f"{message};", f"{_meant(unknown, _flag)}{LISTED}")


def asked_log_format(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> LogFormat:
    """The format of the log that a flag or the environment asks for, whatever is wrong with the rest."""
    flags = re.findall(r"--log-format[= ](\S+)", " ".join(arguments))
    return "json" if [environ.get(variable("log_format")), *flags][-1] == "json" else "text"


def public_name(model: str) -> str:
    """The public name of a model given as a shipped name, a folder or a hub id; it does not tell where a folder is."""
    path = Path(model)
    return (path.absolute().name if path.is_dir() else "") or model


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _meant(unknown: Sequence[str], written: Callable[[str], str]) -> str:
    """Suggests settings whose names are close to unknown variables, flags or keys. written: how those are written."""
    names = [name.upper().removeprefix(PREFIX).lower().strip("-").replace("-", "_") for name in unknown]
    near = dict.fromkeys(written(one) for name in names for one in get_close_matches(name, Settings.model_fields, n=1))
    return f"did you mean {', '.join(near)}? " if near else ""


def explain(error: BadSetting) -> str:
    """The error's message, which names a setting by its variable."""
    name = variable(error.name) if error.name in Settings.model_fields else error.name
    return f"{name} {error.reason}"


def table() -> str:
    """The settings as a Markdown table, for docs/settings.md."""
    rows = ["| variable | value | default | |", "| --- | --- | --- | --- |"]
    for name, facts in Settings.model_json_schema()["properties"].items():
        known = facts.get("enum", ("true", "false") if facts["type"] == "boolean" else ())
        choices = ", ".join(f"`{choice}`" for choice in known)
        bounds = [f"{sign} {facts[key]:g}" for key, sign in BOUNDS.items() if key in facts]
        kind = f"{facts['type'].replace('string', 'text')} {', '.join(bounds)}".strip()
        text = " ".join(facts["description"].split())
        rows.append(f"| `{variable(name)}` | {choices or kind} | {_default(name)} | {text} |")
    return "\n".join(rows) + "\n"


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def _default(name: str) -> str:
    value = Settings.model_fields[name].default
    if isinstance(value, str):
        return f"`{value}`" if value else ""
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if name.endswith("_bytes"):
        return f"{value >> 20:,} MiB"
    return f"{value:,.15g}" if value >= 10_000 else f"{value:g}"


if __name__ == "__main__":
    print(table(), end="")  # noqa: T201
