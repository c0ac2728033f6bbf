"""bandrank itself as a system to compare, in process and over HTTP."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import httpx
import numpy as np
import torch

from bandrank.dtypes import DtypeName
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings
from bandrank_bench.service import Service, running_service
from bandrank_bench.systems import Pattern, Score, Scores, System, dtypes, scores_in_order, torch_precision

REQUEST_TIMEOUT_S = 900.0  # long documents in emulated bfloat16 take minutes


def open_ours(stack: ExitStack, checkpoints: dict[Pattern, Path], work: Path) -> Iterator[System]:
    """Opens every pattern and precision, in process and over HTTP; `stack` closes them."""
    for pattern, checkpoint in checkpoints.items():
        for dtype in dtypes():
            precision = torch_precision(getattr(torch, dtype))
            name = f"bandrank {pattern} {precision}"
            yield System(name, precision, pattern, "in process", stack.enter_context(load(checkpoint, dtype)))
            served = stack.enter_context(serve(checkpoint, dtype, work / f"{pattern}-{dtype}.log"))
            yield System(f"{name}, HTTP", precision, pattern, "HTTP", served, served=name)


@contextmanager
def load(checkpoint: Path, dtype: DtypeName) -> Iterator[Score]:
    """Runs the service's engine in this process, without HTTP."""
    settings = Settings(model=str(checkpoint), device="cpu", dtype=dtype, request_timeout_s=REQUEST_TIMEOUT_S)
    serving = assemble(load_models(settings), settings)

    with asyncio.Runner() as runner:
        # Not `runner.run`, which takes a millisecond or more: looking for a Ctrl-C handler, it formats every result.
        run = runner.get_loop().run_until_complete

        def score(query: str, passages: Sequence[str]) -> Scores:
            ranking = run(serving.models.default.rank(query, passages))
            scores = np.empty(len(passages), np.float32)
            for candidate in ranking.candidates:
                scores[candidate.index] = candidate.score
            return scores

        try:
            yield score
        finally:
            run(serving.models.close())


@contextmanager
def serve(checkpoint: Path, dtype: DtypeName, log: Path, **more: str) -> Iterator[Score]:
    """Runs `bandrank serve` in another process, and scores with it.

    Uses the standard library's client, because httpx takes a millisecond of processor time per request, a tenth of a
    small one. more: as for `serve_client`, which raises the same.
    """
    with (
        _running(checkpoint, dtype, log, more) as service,
        closing(HTTPConnection(service.host, service.port, timeout=REQUEST_TIMEOUT_S + 10)) as connection,
    ):
        yield _http_score(connection)


@contextmanager
def serve_client(checkpoint: Path, dtype: DtypeName, log: Path, **more: str) -> Iterator[httpx.Client]:
    """Runs `bandrank serve` in another process; yields a client with a kept connection on the loopback interface.

    more: further settings, by their names without BANDRANK_.
    Raises RuntimeError with the end of its log if it dies or is not ready in time.
    """
    with (
        _running(checkpoint, dtype, log, more) as service,
        httpx.Client(base_url=service.url, timeout=REQUEST_TIMEOUT_S + 10, trust_env=False) as client,
    ):
        yield client


@contextmanager
def _running(checkpoint: Path, dtype: DtypeName, log: Path, more: Mapping[str, str]) -> Iterator[Service]:
    settings = {"MODEL": str(checkpoint), "DEVICE": "cpu", "DTYPE": dtype, "REQUEST_TIMEOUT_S": str(REQUEST_TIMEOUT_S)}
    with running_service({**settings, **more}, log) as service:
        yield service


def _http_score(connection: HTTPConnection) -> Score:
    def ask(body: bytes) -> bytes:
        connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != HTTPStatus.OK:
            raise RuntimeError(answer.decode())
        return answer

    def score(query: str, passages: Sequence[str]) -> Scores:
        body = json.dumps({"query": query, "candidates": list(passages), "raw_scores": True}).encode()
        try:
            answer = ask(body)
        except ConnectionError:  # closed by the service while others had their turns
            connection.close()
            answer = ask(body)
        return scores_in_order(json.loads(answer)["results"], len(passages))

    return score
