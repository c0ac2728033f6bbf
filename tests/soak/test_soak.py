"""A minute of 64 concurrent clients against the real service: every answer right, every request accounted for.

Run with `pytest -m soak tests/soak -s`. BANDRANK_SOAK_S: seconds under load (default 60). BANDRANK_MODEL: the model
served (default: a tiny random cross-encoder, so that the load falls on the service and not on the model).
"""

import asyncio
import dataclasses
import json
import math
import os
import random
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.server import RunningService, Scrape, running_service
from support.soak_pool import Call, Pool, draw, tiny_cross_encoder

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("BANDRANK_SOAK_S", "60"))
MODEL = os.environ.get("BANDRANK_MODEL")
NUM_CLIENTS = 64
MOST_CANDIDATES = 50
ABORTED_SHARE = 0.3  # of the requests of the second phase
# A sigmoid is nowhere steeper than 1/4, so scores within 4e-5 before it are within 1e-5 after it.
TOLERANCE = 1e-5
RAW_TOLERANCE = 4e-5
TLS = ssl.create_default_context()  # never used, but without it each client would spend 30 ms on making one


@dataclasses.dataclass
class Tally:
    """What the clients sent and what came back."""

    sent: int = 0
    answered: int = 0
    aborted: int = 0
    answered_candidates: int = 0
    aborted_candidates: int = 0
    ids: set[str] = dataclasses.field(default_factory=set)
    latencies_s: list[float] = dataclasses.field(default_factory=list)


def test_under_load_every_answer_is_right_and_every_request_is_accounted_for(tmp_path: Path) -> None:
    """64 clients get the offline scores and nothing is lost, also when some hang up and when the service stops."""
    model = MODEL or str(tiny_cross_encoder(tmp_path / "model"))
    pool = Pool.scored_by(model)
    patient = ["--patience", "1000"]  # every request is to be answered, however many others wait
    with running_service(tmp_path, arguments=["--model", model, *patient]) as service:
        asyncio.run(soak(service, pool))


async def soak(service: RunningService, pool: Pool) -> None:
    """Runs the three phases, each of which compares what /metrics says with what was sent."""
    async with httpx.AsyncClient(base_url=service.url, timeout=60.0, trust_env=False) as observer:
        before = await scrape(observer)
        steady = await load(service.url, pool, seconds=SECONDS / 2, aborted_share=0.0)
        after = await settled(observer)
        print(f"\nsteady: {summary(steady, SECONDS / 2)}")
        assert steady.sent == steady.answered > NUM_CLIENTS
        assert growth(before, after, "bandrank_requests_total", status="200") == steady.answered
        assert growth(before, after, "bandrank_requests_total") == steady.sent
        assert growth(before, after, "bandrank_request_seconds_count") == steady.sent
        assert growth(before, after, "bandrank_candidates_total") == steady.answered_candidates
        assert growth(before, after, "bandrank_dropped_tasks_total") == 0

        before = after
        hectic = await load(service.url, pool, seconds=SECONDS / 2, aborted_share=ABORTED_SHARE)
        after = await settled(observer)
        print(f"with clients that hang up: {summary(hectic, SECONDS / 2)}")
        assert hectic.sent == hectic.answered + hectic.aborted
        # An aborted request may have been answered to nobody, given up, or never have arrived.
        answers, given_up = (growth(before, after, "bandrank_requests_total", status=s) for s in ("200", "499"))
        assert hectic.answered <= answers <= hectic.sent
        assert growth(before, after, "bandrank_requests_total") == answers + given_up <= hectic.sent
        candidates = growth(before, after, "bandrank_candidates_total")
        assert hectic.answered_candidates <= candidates <= hectic.answered_candidates + hectic.aborted_candidates
        dropped = growth(before, after, "bandrank_dropped_tasks_total", reason="cancelled")
        print(f"dropped before they were scored: {dropped:.0f} of {hectic.aborted} aborted")
        assert 0 < dropped <= hectic.aborted
        assert growth(before, after, "bandrank_dropped_tasks_total", reason="expired") == 0

        await stop_with_requests_in_flight(service, observer, pool)
        # A client that hangs up is no failure of the service's.
        assert service.log.read_text().count("Traceback") == 0, f"see {service.log}"


async def load(url: str, pool: Pool, *, seconds: float, aborted_share: float) -> Tally:
    """Runs the clients for `seconds`; a wrong or missing answer ends them all with its AssertionError."""
    tally = Tally()
    deadline = time.monotonic() + seconds
    async with asyncio.TaskGroup() as clients:
        for number in range(NUM_CLIENTS):
            rng = random.Random(f"{aborted_share} {number}")
            clients.create_task(client_until(deadline, url, pool, tally, rng=rng, aborted_share=aborted_share))
    return tally


async def client_until(
    deadline: float, url: str, pool: Pool, tally: Tally, *, rng: random.Random, aborted_share: float
) -> None:
    """Runs one client on a keep-alive connection, which it opens anew after hanging up in the middle of a request."""
    connection = connect(url)
    try:
        while time.monotonic() < deadline:
            call = draw(pool, rng, num_candidates=rng.randint(1, MOST_CANDIDATES))
            tally.sent += 1
            if rng.random() < aborted_share:
                response = await ask_and_hang_up(connection, call, rng)
                if response is None:
                    await connection.aclose()
                    connection = connect(url)
                    tally.aborted += 1
                    tally.aborted_candidates += len(call.texts)
                    continue
            else:
                started = time.monotonic()
                response = await connection.post("/rerank", json=call.body)
                tally.latencies_s.append(time.monotonic() - started)
            check(call, response, pool, tally)
    finally:
        await connection.aclose()


def connect(url: str) -> httpx.AsyncClient:
    """Returns a client with one keep-alive connection. An answer that takes more than a minute counts as lost."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    return httpx.AsyncClient(base_url=url, timeout=60.0, limits=limits, trust_env=False, verify=TLS)


async def ask_and_hang_up(connection: httpx.AsyncClient, call: Call, rng: random.Random) -> httpx.Response | None:
    """Sends a request and hangs up within the body or the wait. Returns the answer if it was faster than that."""
    body = json.dumps(call.body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    try:
        if rng.random() < 0.3:
            await connection.post("/rerank", content=half_of(body), headers=headers)
            raise AssertionError("half a body was answered")
        async with asyncio.timeout(rng.uniform(0.0, 0.3)):
            return await connection.post("/rerank", content=body, headers=headers)
    except (HungUp, TimeoutError):
        return None


class HungUp(Exception):
    """Raised where the client hangs up."""


async def half_of(body: bytes) -> AsyncIterator[bytes]:
    """Yields the first half of a body, and hangs up."""
    yield body[: len(body) // 2]
    raise HungUp


def check(call: Call, response: httpx.Response, pool: Pool, tally: Tally) -> None:
    """Asserts that the answer is the right ranking, scores included, and counts it."""
    assert response.status_code == httpx.codes.OK, f"{response.status_code}: {response.text[:500]}"
    answer = response.json()
    results = answer["results"]
    order = [result["index"] for result in results]
    scores = [result["relevance_score"] for result in results]
    raw = [pool.raw_scores[call.query][text] for text in call.texts]
    expected, tolerance = raw, RAW_TOLERANCE
    if not call.body.get("raw_scores"):
        expected, tolerance = [1 / (1 + math.exp(-score)) for score in raw], TOLERANCE

    assert len(order) == call.body.get("top_n", len(call.texts))
    assert len(set(order)) == len(order)
    assert set(order) <= set(range(len(call.texts)))
    for position, score in zip(order, scores, strict=True):
        assert abs(score - expected[position]) <= tolerance, (call.query, call.texts[position])
    assert scores == sorted(scores, reverse=True)
    left_out = [expected[position] for position in set(range(len(expected))) - set(order)]
    assert not left_out or max(left_out) <= scores[-1] + tolerance
    ours = "candidates" in call.body  # else a request in another wire format, which returns all fields of a document
    for result in results:
        sent = call.body["candidates" if ours else "documents"][result["index"]]
        fields = sent if isinstance(sent, dict) else {}
        assert result.get("id") == (fields.get("id") if ours else None)
        document = {"text": pool.texts[call.texts[result["index"]]]} | ({} if ours else fields)
        assert result.get("document") == (document if call.body.get("return_documents") else None)
    assert answer["id"] not in tally.ids, "an answer came twice"
    tally.ids.add(answer["id"])
    tally.answered += 1
    tally.answered_candidates += len(call.texts)


async def stop_with_requests_in_flight(service: RunningService, observer: httpx.AsyncClient, pool: Pool) -> None:
    """Sends SIGTERM while 8 requests are admitted: all 8 are answered, and the process exits with 0."""
    tally, rng = Tally(), random.Random("stop")
    calls = [draw(pool, rng, num_candidates=500) for _ in range(8)]
    connections = [connect(service.url) for _ in calls]
    pairs = zip(connections, calls, strict=True)
    answers = [asyncio.create_task(connection.post("/rerank", json=call.body)) for connection, call in pairs]
    while (await scrape(observer)).value("bandrank_waiting_tasks") < 6 and not any(a.done() for a in answers):
        pass
    service.terminate()
    in_flight = sum(not answer.done() for answer in answers)
    for call, answer in zip(calls, await asyncio.gather(*answers), strict=True):
        check(call, answer, pool, tally)
    for connection in connections:
        await connection.aclose()
    status = await asyncio.to_thread(service.exit_status)
    print(f"stopped with {in_flight} requests in flight: {tally.answered} of 8 answered, exit status {status}")
    assert (in_flight, tally.answered, status) == (8, 8, 0)


async def scrape(observer: httpx.AsyncClient) -> Scrape:
    response = await observer.get("/metrics")
    assert response.status_code == httpx.codes.OK
    return Scrape(response.text)


async def settled(observer: httpx.AsyncClient) -> Scrape:
    """Returns a scrape once nothing waits and every request that began has been counted. A request is counted just
    after its answer has gone out, and one whose client hung up leaves the queue a moment later; neither may take ten
    seconds.
    """
    deadline = time.monotonic() + 10.0
    last, seen = await scrape(observer), await scrape(observer)
    while waiting(seen) != (0, 0) or growth(last, seen, "bandrank_requests_total") > 0:
        assert time.monotonic() < deadline, f"{waiting(seen)} tokens and tasks wait for nobody"
        await asyncio.sleep(0.1)
        last, seen = seen, await scrape(observer)
    return seen


def waiting(seen: Scrape) -> tuple[float, float]:
    return seen.value("bandrank_waiting_tokens"), seen.value("bandrank_waiting_tasks")


def growth(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after.value(name, **labels) - before.value(name, **labels)


def summary(tally: Tally, seconds: float) -> str:
    ordered = sorted(tally.latencies_s)
    p50, p99 = (1000 * ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return (
        f"{tally.sent} requests sent, {tally.answered} answered and right, {tally.aborted} aborted;"
        f" {tally.answered / seconds:.0f} answers/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms at {NUM_CLIENTS} clients"
    )
