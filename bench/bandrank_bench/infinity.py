"""infinity (infinity-emb), another service that re-ranks over HTTP, from a virtual environment of its own.

It needs libraries in versions that exclude ours; `make .venv-infinity/stamp` installs it. Its engine "optimum" is ONNX
Runtime, and wants an ONNX file in the checkpoint's folder.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import numpy as np

from bandrank_bench.service import Service, free_port, running
from bandrank_bench.systems import Scores

ENVIRONMENT = Path(".venv-infinity")
MODEL = "reranker"  # the name under which requests ask for it
OFFLINE = {"INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}

Engine = Literal["torch", "optimum"]
Dtype = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True)
class Configuration:
    """How to start it. dtype: of the torch engine; ONNX files have theirs.  batch_size: the most pairs of a batch."""

    engine: Engine = "torch"
    dtype: Dtype = "float32"
    batch_size: int = 32


def find(environment: Path = ENVIRONMENT) -> Path:
    """Its program in a virtual environment. Raises FileNotFoundError, saying how to install it."""
    program = environment / "bin" / "infinity_emb"
    if not program.exists():
        raise FileNotFoundError(f"{program} is not there: `make {ENVIRONMENT}/stamp` installs infinity-emb")
    return program


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
        "model-id": str(checkpoint.resolve()),
        "served-model-name": MODEL,
        "device": "cpu",
        "engine": how.engine,
        "dtype": how.dtype,
        "batch-size": str(how.batch_size),
    }
    # The BetterTransformer that it would look for is gone from current versions of optimum. Its own warm-up takes
    # batches of the longest texts that the model has positions for, a minute and more on a CPU.
    command = [str(program), "v2", "--no-bettertransformer", "--no-compile", "--no-model-warmup"]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    with running(command, {**os.environ, **OFFLINE}, log, port=port, ready="/health") as service:
        yield service


def score(client: httpx.Client, query: str, passages: Sequence[str]) -> Scores:
    """Raw scores of the passages in their order. client: with the service's address."""
    body = {"query": query, "documents": list(passages), "model": MODEL, "raw_scores": True}
    response = client.post("/rerank", json=body).raise_for_status()
    scores = np.empty(len(passages), np.float32)
    for result in response.json()["results"]:
        scores[result["index"]] = result["relevance_score"]
    return scores
