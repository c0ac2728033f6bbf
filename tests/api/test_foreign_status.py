"""What clients of other services ask before they send a request: probes, lists of models, and what the service is."""

import asyncio
import time
from pathlib import Path

import pytest
from support.app import RunningApp, assert_error, running_app
from support.keys import KEYS, write_keys
from support.scorers import Gate, WatchedScorer, lookup
from support.tasks import until

from bandrank.api.addresses import client_at
from bandrank.api.pace import QUANTUM_S
from bandrank.settings import Settings

LIVE = ["/.well-known/live", "/v1/health/live"]
READY = ["/health", "/ping", "/infinity/health", "/.well-known/ready", "/v1/health/ready"]
FOR_RANKERS = ["/models", "/infinity/models", "/info", "/meta", "/v1/models/tiny"]


async def test_probes_are_answered_without_a_key(tmp_path: Path) -> None:
    """Weaviate's probes get a 204; what is served is only told to those who may rank."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    async with running_app(lookup(), settings=settings) as running:
        for path in (*LIVE, *READY):
            status = 204 if path.startswith("/.well-known") else 200
            answers = [await running.client.get(path), await running.client.head(path)]
            assert [answer.status_code for answer in answers] == [status] * 2, path
            assert (answers[0].content == b"") == (status == 204)
        for path in FOR_RANKERS:
            assert_error(await running.client.get(path), 401, "unauthorized")
            answer = await running.client.get(path, headers={"Authorization": f"Bearer {KEYS['rank']}"})
            assert isinstance(answer.json(), dict)


@pytest.mark.parametrize("path", [*LIVE, *READY])
async def test_probes_do_not_wait_for_work(path: str) -> None:
    """A probe overtakes even the work of its own address, of which much has come at once."""
    client = client_at(("127.0.0.1", 1))
    async with running_app(lookup()) as running:
        work = [asyncio.ensure_future(running.service.pace.run(client, time.sleep, 2 * QUANTUM_S)) for _ in range(20)]
        await asyncio.sleep(0)
        answer = await running.client.get(path)
        done = sum(each.done() for each in work)
        await asyncio.gather(*work)

    assert answer.is_success
    assert done < len(work)


async def test_a_service_that_stops_is_alive_and_not_ready() -> None:
    async with running_app(lookup()) as running:
        running.service.drain()
        live = [(await running.client.get(path)).status_code for path in LIVE]
        for path in READY:
            assert_error(await running.client.get(path), 503, "not_ready")

    assert live == [204, 200]


async def test_models_are_listed_where_clients_look() -> None:
    """OpenAI's clients look below /v1, others at the root, and infinity's below its prefix."""
    async with running_app(lookup()) as running:
        lists = [(await running.client.get(path)).json() for path in ("/v1/models", "/models", "/infinity/models")]

    [listed], [for_infinity] = lists[0]["data"], lists[2]["data"]
    assert listed["id"] == "tiny"
    assert lists[1] == lists[0]
    assert for_infinity.pop("stats").keys() == {"queue_fraction", "queue_absolute", "results_pending", "batch_size"}
    assert for_infinity == {name: listed[name] for name in ("id", "object", "created")} | {
        "owned_by": "infinity",
        "backend": "torch",
        "capabilities": ["rerank"],
    }


async def test_a_path_without_a_models_name_says_where_they_are_listed() -> None:
    """An empty name is not a model, and must not be taken for the default one."""
    async with running_app(lookup()) as running:
        message = assert_error(await running.client.get("/v1/models/"), 404, "unknown_model")

    assert message.endswith("GET /v1/models lists them")


async def test_infinitys_clients_are_told_how_busy_the_service_is() -> None:
    """The list of models tells infinity's clients how many rows wait and how many requests are not answered yet."""
    gate = Gate()
    settings = Settings(device="cpu", max_waiting_rows=1000, max_batch_rows=10, patience=1e6)

    async def told(running: RunningApp) -> dict[str, float]:
        [model] = (await running.client.get("/infinity/models")).json()["data"]
        stats: dict[str, float] = model["stats"]
        return stats

    async with running_app(WatchedScorer(lookup(), gate), settings=settings, started=False) as running:
        idle = await told(running)
        asking = [asyncio.create_task(running.rerank({"query": "who", "candidates": ["man"]}))]
        await asyncio.to_thread(gate.wait_for_batch)
        more = {"query": "who", "candidates": ["man", "she"], "return_passages": True}
        asking += [asyncio.create_task(running.rerank(more)) for _ in "ab"]
        await until(lambda: running.service.models.default.engine.queue.waiting_tasks == 2)
        busy, waiting = await told(running), (await running.scrape()).value("bandrank_waiting_tokens")
        gate.let_through(10)
        await asyncio.gather(*asking)
        after = await told(running)

    assert idle == after == {"queue_fraction": 0.0, "queue_absolute": 0, "results_pending": 0, "batch_size": 10}
    assert waiting > 0
    assert busy == idle | {"queue_fraction": waiting / 1000, "queue_absolute": waiting, "results_pending": 3}


async def test_xinferences_clients_learn_whether_to_send_a_key(tmp_path: Path) -> None:
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    async with running_app(lookup()) as opened, running_app(lookup(), settings=settings) as keyed:
        answers = [(await running.client.get("/v1/cluster/auth")).json() for running in (opened, keyed)]

    assert answers == [{"auth": False}, {"auth": True}]
