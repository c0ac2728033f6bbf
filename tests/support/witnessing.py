"""The polite client of `Witness`, as a process with nothing else to do: `python -m support.witnessing URL PID ASKING`.

Its input comes in pairs of lines. Between the two it sends small requests and probes; it prints a line when it has
begun, and after the second line what it saw, as JSON. All answers must have the scores of the first.
"""

import http.client
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

TOLERANCE = 1e-4  # of raw scores, whatever else is in the batch
EVERY_S = 0.05
PATIENCE_S = 90.0
ADDRESS = "127.0.0.2"  # not that of the attacks, so that it is another client; Linux has all of 127.0.0.0/8


@dataclass(frozen=True)
class Asked:
    """The request to send, and the probe beside it. hits: whether the answer has the hits of a search."""

    path: str
    probe: str
    body: str
    headers: Mapping[str, str]
    hits: bool

    def scores_in(self, answer: bytes) -> dict[str, float]:
        """The scores in an answer, by the indices of candidates or the ids of hits."""
        told = json.loads(answer)
        if self.hits:
            return {hit["_id"]: hit["_score"] for hit in told["hits"]["hits"]}
        return {str(result["index"]): result["relevance_score"] for result in told["results"]}


ASKED = {
    "service": Asked(
        "/rerank",
        "/healthz",
        json.dumps({"query": "who is it", "candidates": ["the man", "she"], "raw_scores": True}),
        {"Content-Type": "application/json"},
        hits=False,
    ),
    "proxy": Asked(
        "/docs/_search",
        "/_bandrank/healthz",
        json.dumps({"query": {"match": {"title": "who is it"}}}),
        {"Content-Type": "application/json", "X-Rerank": "title"},
        hits=True,
    ),
}


def main(url: str, pid: int, asked: Asked) -> None:
    """Asks for the expected scores, then looks on during each pair of lines of the input."""
    host = url.removeprefix("http://")
    with connected(host) as first:
        status, answer = exchange(first, "POST", asked.path, asked.body, asked.headers)
    assert status == 200, answer
    expected = asked.scores_in(answer)
    while sys.stdin.readline():
        with connected(host) as ask, connected(host) as probe:
            print("begun", flush=True)
            print(json.dumps(look_on(ask, probe, pid, asked, expected)), flush=True)


@contextmanager
def connected(host: str) -> Iterator[http.client.HTTPConnection]:
    """A connection of the polite client."""
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S, source_address=(ADDRESS, 0))
    connection.connect()
    yield connection
    connection.close()


def look_on(
    ask: http.client.HTTPConnection,
    probe: http.client.HTTPConnection,
    pid: int,
    asked: Asked,
    expected: dict[str, float],
) -> dict[str, Any]:
    """Asks on both connections until the input's next line; returns what was seen meanwhile."""
    seen: dict[str, Any] = {"latencies_s": [], "probes_s": [], "wrong": [], "most_memory": resident_bytes(pid)}
    stop = threading.Event()

    def keep_asking() -> None:
        is_on = True
        while is_on:  # at least once
            started = time.monotonic()
            try:
                status, answer = exchange(ask, "POST", asked.path, asked.body, asked.headers)
                if status != 200 or not are_close(asked.scores_in(answer), expected):
                    seen["wrong"].append(f"{status}: {answer[:200]!r}")
            except (http.client.HTTPException, OSError) as error:
                seen["wrong"].append(f"{asked.path}: {error!r}")
            seen["latencies_s"].append(time.monotonic() - started)
            is_on = not stop.wait(EVERY_S)

    def keep_probing() -> None:
        is_on = True
        while is_on:
            started = time.monotonic()
            try:
                status, answer = exchange(probe, "GET", asked.probe)
                if status != 200:
                    seen["wrong"].append(f"{asked.probe}: {status}: {answer[:200]!r}")
            except (http.client.HTTPException, OSError) as error:
                seen["wrong"].append(f"{asked.probe}: {error!r}")
            seen["probes_s"].append(time.monotonic() - started)
            seen["most_memory"] = max(seen["most_memory"], resident_bytes(pid))
            is_on = not stop.wait(EVERY_S)

    threads = [threading.Thread(target=keep_asking), threading.Thread(target=keep_probing)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    return seen


def exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The status and body of an answer. Raises HTTPException and OSError; the next call opens another connection."""
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, OSError):
        connection.close()
        raise


def are_close(scores: dict[str, float], expected: dict[str, float]) -> bool:
    """Whether there are all the expected scores and no others, within the tolerance."""
    return scores.keys() == expected.keys() and all(abs(scores[at] - expected[at]) <= TOLERANCE for at in expected)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), ASKED[sys.argv[3]])
