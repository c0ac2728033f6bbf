"""A polite client beside an attack: its answers, its waiting, probes, and the memory of the service meanwhile."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from support.server import RunningService

TOLERANCE = 1e-4  # of raw scores in any company
BODY = {"query": "who is it", "candidates": ["the man", "she"], "raw_scores": True}


@dataclass
class Testimony:
    """What the witness saw. latencies_s, probes_s: of its requests and probes.  wrong: answers that are not right."""

    latencies_s: list[float] = field(default_factory=list)
    probes_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    most_memory: int = 0

    @property
    def p99_s(self) -> float:
        """Of its requests."""
        return statistics.quantiles(self.latencies_s, n=100)[-1] if len(self.latencies_s) > 1 else 0.0


@contextmanager
def witness(service: RunningService, *, every_s: float = 0.05) -> Iterator[Testimony]:
    """Asks small requests and probes until the block ends. Its first answer is the one that all others must be."""
    testimony, stop = Testimony(), threading.Event()
    client = httpx.Client(base_url=service.url, timeout=90.0, trust_env=False)
    expected = _scores(client.post("/rerank", json=BODY))
    testimony.most_memory = resident_bytes(service)

    def ask() -> None:
        while not stop.wait(every_s):
            started = time.monotonic()
            try:
                response = client.post("/rerank", json=BODY)
            except httpx.TransportError as error:
                testimony.wrong.append(f"{type(error).__name__}: {error}")
                continue
            testimony.latencies_s.append(time.monotonic() - started)
            if response.status_code != httpx.codes.OK or _scores(response) != pytest.approx(expected, abs=TOLERANCE):
                testimony.wrong.append(f"{response.status_code}: {response.text[:200]}")

    def probe() -> None:
        with httpx.Client(base_url=service.url, timeout=90.0, trust_env=False) as prober:
            while not stop.wait(every_s):
                started = time.monotonic()
                try:
                    prober.get("/healthz").raise_for_status()
                except httpx.HTTPError as error:
                    testimony.wrong.append(f"/healthz: {error!r}")
                testimony.probes_s.append(time.monotonic() - started)
                testimony.most_memory = max(testimony.most_memory, resident_bytes(service))

    threads = [threading.Thread(target=ask), threading.Thread(target=probe)]
    for thread in threads:
        thread.start()
    try:
        yield testimony
    finally:
        time.sleep(2 * every_s)
        stop.set()
        for thread in threads:
            thread.join()
        client.close()


def resident_bytes(service: RunningService) -> int:
    """Resident memory of the service's process."""
    for line in Path(f"/proc/{service.process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the service has ended")


def _scores(response: httpx.Response) -> dict[int, float]:
    """Scores by the candidates' indices."""
    return {result["index"]: result["relevance_score"] for result in response.json()["results"]}
