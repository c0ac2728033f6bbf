"""Scorers that precompute, their candidates cached, beside the sparse cross-encoder on the same encoder.

Run as `python -m bandrank_bench precomputed`; needs redis-server. Weights of the
interactions are random: this compares cost, not quality.
"""

import argparse
import asyncio
import json
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import httpx
import torch

from bandrank.engine.cache.keys import digest
from bandrank.engine.cache.representations import Rescue
from bandrank.engine.clients import ITSELF
from bandrank.engine.representation_source import RepresentationSource
from bandrank.engine.tickets import Ticket
from bandrank.models import checkpoint
from bandrank.models.architectures.bi_encoder import BiEncoder, BiEncoderConfig
from bandrank.models.architectures.colbert import ColBERT, ColBERTConfig
from bandrank.models.architectures.mix_encoder import MixEncoder, MixEncoderConfig
from bandrank.models.loading import load_model
from bandrank.models.scorer import Scorer
from bandrank.serving import assemble, load_models
from bandrank.settings import Settings
from bandrank_bench import machine
from bandrank_bench.calibrate import Calibration, clean, take_turns
from bandrank_bench.checkpoint import write_checkpoint
from bandrank_bench.ours import load, serve_client
from bandrank_bench.output import say, write_page
from bandrank_bench.precomputed_report import (
    AIMS,
    CROSS_ENCODER,
    INT8,
    MANY,
    MANY_BYTES,
    NUM_CANDIDATES,
    REPEATS,
    Cached,
    Latency,
    report,
)
from bandrank_bench.service import free_port
from bandrank_bench.systems import WINDOW, Score
from bandrank_bench.workloads import WORKLOADS, Writer, load_tokenizer
from bandrank_kernels.native.library import why_no_native

JSON = {"content-type": "application/json"}
ROUNDS = 5  # of all systems by turns, for the ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks-precomputed.md"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bandrank-bench-") as folder, ExitStack() as stack:
        work = Path(folder)
        cross_encoder = write_checkpoint(work / "cross", window=WINDOW)
        scorers = write_scorers(cross_encoder, work)
        writer = Writer(load_tokenizer(cross_encoder))
        passages = [
            text for page in range(NUM_CANDIDATES // 100) for text in WORKLOADS["W1"].request(writer, page).passages
        ]
        redis = stack.enter_context(running_redis())
        engines = {CROSS_ENCODER: stack.enter_context(load(cross_encoder, "float32"))}
        engines |= {name: stack.enter_context(load(path, "float32")) for name, path in scorers.items()}
        if why_no_native() is None:
            paths = {CROSS_ENCODER: cross_encoder} | scorers
            engines |= {name + INT8: stack.enter_context(load(path, "int8")) for name, path in paths.items()}
        clients: dict[str, httpx.Client] = {}
        for name in AIMS:
            for tier, more in (("memory", {}), ("Redis", {"REDIS_URL": redis, "CACHE_MEMORY_BYTES": "0"})):
                log = work / f"{name}-{tier}.log"
                served = serve_client(scorers[name], "float32", log, **more)
                clients[f"{name}, HTTP, from {tier}"] = stack.enter_context(served)
        calibration = Calibration()
        seconds = compare(engines, clients, writer, passages, rounds=options.rounds, calibration=calibration)
        latencies = {name: repeat(client, writer, passages) for name, client in clients.items()}
        hash_ms = median(milliseconds(lambda: [digest(text) for text in passages]) for _ in range(20))
        cached = {name: asyncio.run(fill_cache(path, writer, passages)) for name, path in scorers.items()}
    facts = machine.describe() | {"calibration product": calibration.describe()}
    write_page(options.out, report(facts, seconds, latencies, cached, hash_ms))
    return 0


def write_scorers(cross_encoder: Path, work: Path) -> dict[str, Path]:
    """Writes checkpoints of the scorers that precompute, all with the cross-encoder's encoder."""
    source = load_model(str(cross_encoder)).scorer
    encoder, ids = source.encoder, {"cls_id": source.config.cls_id, "sep_id": source.config.sep_id}
    shape = source.config.encoder
    torch.manual_seed(0)
    scorers: dict[str, Scorer] = {
        f"MixEncoder-{name}": MixEncoder(MixEncoderConfig.of_paper(name, shape, **ids))  # type: ignore[arg-type]
        for name in "abc"
    }
    scorers["bi-encoder"] = BiEncoder(BiEncoderConfig(encoder=shape, **ids))
    colbert = ColBERTConfig(encoder=shape, mask_id=103, query_marker=1, candidate_marker=2, **ids)
    scorers["ColBERT"] = ColBERT(colbert)
    folders = {}
    for name, scorer in scorers.items():
        folders[name] = work / name
        checkpoint.save(scorer.initialise(encoder), folders[name], tokenizer=cross_encoder / "tokenizer.json")
    return folders


def compare(
    engines: Mapping[str, Score],
    clients: Mapping[str, httpx.Client],
    writer: Writer,
    passages: list[str],
    *,
    rounds: int,
    calibration: Calibration,
) -> dict[str, list[float]]:
    """Times every system; returns the seconds of clean samples. Each round has a new query and the same candidates."""

    def over_http(client: httpx.Client) -> Callable[[str], object]:
        return lambda query: ask(client, body_of(query, passages)).json()

    def in_process(score: Score) -> Callable[[str], object]:
        return lambda query: score(query, passages)

    systems = {name: in_process(score) for name, score in engines.items()}
    systems |= {name: over_http(client) for name, client in clients.items()}
    for name, run in systems.items():
        say(f"warming up: {name}")
        for number in (2001, 2002):
            run(WORKLOADS["W1"].request(writer, number).query)
    say(f"{rounds} clean samples of each")
    samples = take_turns(
        [{name: run} for name, run in systems.items()],
        lambda number: WORKLOADS["W1"].request(writer, 3000 + number).query,
        workload=f"{NUM_CANDIDATES} candidates",
        rounds=rounds,
        calibration=calibration,
        tokens=lambda _: 1,
    )
    kept = clean(samples, calibration.calm_s)
    return {name: [one.seconds for one in kept if one.system == name] for name in systems}


def ask(client: httpx.Client, body: bytes) -> httpx.Response:
    """Sends a request; returns the answer, unparsed."""
    return client.post("/rerank", content=body, headers=JSON).raise_for_status()


def body_of(query: str, texts: Sequence[str]) -> bytes:
    """The body of a request, ready to send."""
    return json.dumps({"query": query, "candidates": list(texts), "raw_scores": True}).encode()


def repeat(client: httpx.Client, writer: Writer, passages: list[str]) -> Latency:
    """Sends many requests one after the other, each with a new query. The client's time for making bodies and parsing
    answers does not count.
    """
    latency = Latency()
    for number in range(REPEATS):
        body = body_of(WORKLOADS["W1"].request(writer, 5000 + number).query, passages)
        started = time.perf_counter()
        response = ask(client, body)
        latency.total_ms.append((time.perf_counter() - started) * 1e3)
        for name, value in response.json()["meta"]["timings_ms"].items():
            latency.steps_ms[name].append(value)
    return latency


async def fill_cache(folder: Path, writer: Writer, passages: list[str]) -> Cached:
    """Caches MANY candidates, with the representations of `passages` in turn, and scores them for a query."""
    say(f"caching {MANY:,} candidates of {folder.name}")
    settings = Settings(
        model=str(folder),
        device="cpu",
        cache_memory_bytes=64 * 2**30,
        request_timeout_s=600.0,
        max_waiting_rows=MANY * 512,
    )
    serving = assemble(load_models(settings), settings)
    (scorer,) = serving.models.default.engine.text_scorers
    source = scorer.source
    assert isinstance(source, RepresentationSource), "these scorers precompute. This is a bug."
    await source.represent(passages, ticket=Ticket(ITSELF, math.inf))
    cached = await source.cache.lookup([digest(text) for text in passages])
    payloads = [payload for payload in cached if payload is not None]
    size = sum(map(len, payloads)) / len(payloads)
    sealed = sum(len(source.cache.codec.seal(payload, b"")) for payload in payloads) / len(payloads)
    many_ms: list[float] = []
    if size < MANY_BYTES / MANY:
        texts = [f"{number} {passages[number % len(passages)]}" for number in range(MANY)]

        async def copies(keys: list[bytes], _: Rescue) -> list[bytes]:
            return [payloads[number % len(payloads)] for number in range(len(keys))]

        await source.cache.compute_missing([digest(text) for text in texts], copies)
        for number in range(3):
            query = WORKLOADS["W1"].request(writer, 7000 + number).query
            started = time.perf_counter()
            await serving.models.default.rank(query, texts)
            many_ms.append((time.perf_counter() - started) * 1e3)
    value = serving.models.default.engine.metrics.registry.get_sample_value
    memory = (value("bandrank_cache_memory_bytes") or 0) / (value("bandrank_cache_memory_entries") or 1)
    await serving.models.close()
    return Cached(size, sealed, memory, many_ms[1:])


@contextmanager
def running_redis() -> Iterator[str]:
    """Starts a Redis server on a free port of the loopback interface, without persistence; yields its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed: apt-get install redis-server")
    port = free_port()
    arguments = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()


def milliseconds(run: Callable[[], object]) -> float:
    """Times one call, in milliseconds."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3
