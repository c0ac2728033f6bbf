"""infinity (infinity-emb), another service that re-ranks over HTTP, in its own virtual environment.

It needs versions of libraries that conflict with ours; `make .venv-infinity/stamp` installs it. Its engine "optimum" is
ONNX Runtime, which needs an ONNX file in the checkpoint's folder.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

import httpx

from bandrank_bench.service import Service, free_port, running
from bandrank_bench.systems import Scores, scores_in_order

ENVIRONMENT = Path(".venv-infinity")
PACKAGES = ("infinity-emb", "torch", "transformers", "sentence-transformers", "optimum-onnx", "onnxruntime")
MODEL = "reranker"  # its name in requests
OFFLINE = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

Engine = Literal["torch", "optimum"]
Dtype = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class Configuration:
    """How to start it. dtype: of the torch engine; ONNX files have theirs.  batch_size: the most pairs per batch."""

    engine: Engine = "torch"
    dtype: Dtype = "float32"
    batch_size: int = 32


def find(environment: Path = ENVIRONMENT) -> Path:
    """Finds its program in a virtual environment. Raises FileNotFoundError that says how to install it."""
    program = environment / "bin" / "infinity_emb"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not there: `make {ENVIRONMENT}/stamp` installs infinity-emb")
    return program


def versions(environment: Path = ENVIRONMENT) -> str:
    """The versions of infinity and its main libraries; empty without the environment."""
    packages = distributions(path=[str(folder) for folder in environment.glob("lib/python*/site-packages")])
    found = {package.name.replace("_", "-"): package.version for package in packages}
    return ", ".join(f"{name} {found[name]}" for name in PACKAGES if name in found)


@contextmanager
def running_infinity(program: Path, checkpoint: Path, how: Configuration, log: Path) -> Iterator[Service]:
    """Starts the service with one checkpoint, waits until it answers, and stops it at the end.

    Raises RuntimeError with the end of the log if it dies or is not ready in time.
    """
    port = free_port()
    options = {
        "host": "127.0.0.1",
        "port": str(port),
        "log-level": "warning",
        "model-id": ".",  # with any other name, its engine optimum looks beside the folder
        "served-model-name": MODEL,
        "device": "cpu",
        "engine": how.engine,
        "dtype": how.dtype,
        "batch-size": str(how.batch_size),
    }
    # Current versions of optimum no longer have BetterTransformer. Infinity's own warm-up, with batches of the longest
    # texts that the model can read, takes over a minute on a CPU.
    command = [
        str(program.absolute()),
        "v2",
        "--no-bettertransformer",
        "--no-compile",
        "--no-model-warmup",
        "--onnx-disable-optimize",
    ]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    with running(command, {**os.environ, **OFFLINE}, log, port=port, ready="/health", folder=checkpoint) as service:
        yield service


def score(client: httpx.Client, query: str, passages: Sequence[str]) -> Scores:
    """Raw scores of the passages in their order. client: with the service's address."""
    body = {"query": query, "documents": list(passages), "model": MODEL, "raw_scores": True}
    response = client.post("/rerank", json=body).raise_for_status()
    return scores_in_order(response.json()["results"], len(passages))
