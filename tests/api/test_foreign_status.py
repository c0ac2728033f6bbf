"""What clients of other services ask before they send anything."""

from pathlib import Path

import httpx
import pytest
from support.app import assert_error, running_app
from support.keys import KEYS, write_keys
from support.scorers import lookup

from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

LIVE = ["/.well-known/live", "/v1/health/live"]
READY = ["/health", "/ping", "/infinity/health", "/.well-known/ready", "/v1/health/ready"]
FOR_RANKERS = ["/models", "/infinity/models", "/info", "/meta", "/v1/models/tiny"]


async def test_probes_are_answered_without_a_key(tmp_path: Path) -> None:
    """Those of Weaviate with 204; what is served is for those who may rank."""
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


async def test_a_service_that_stops_is_alive_and_not_ready() -> None:
    """Each probe says so by its status."""
    async with running_app(lookup()) as running:
        running.service.drain()
        live = [(await running.client.get(path)).status_code for path in LIVE]
        for path in READY:
            assert_error(await running.client.get(path), 503, "not_ready")

    assert live == [204, 200]


async def test_models_are_listed_where_clients_look() -> None:
    """OpenAI's clients below /v1, others at the root, infinity's below its prefix."""
    async with running_app(lookup()) as running:
        lists = [await running.client.get(path) for path in ("/v1/models", "/models", "/infinity/models")]

    assert [each["id"] for each in lists[0].json()["data"]] == ["tiny"]
    assert lists[1].json() == lists[2].json() == lists[0].json()


async def test_weaviate_starts() -> None:
    """It waits for `ready`, and reads an object at /meta."""
    async with running_app(lookup()) as running:
        ready = await running.client.get("/.well-known/ready")
        meta = await running.client.get("/meta")

    assert ready.status_code <= httpx.codes.NO_CONTENT
    assert meta.json()["model"] == "tiny"


async def test_xinferences_clients_learn_whether_to_send_a_key(tmp_path: Path) -> None:
    """Without having sent one."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    async with running_app(lookup()) as opened, running_app(lookup(), settings=settings) as keyed:
        answers = [(await running.client.get("/v1/cluster/auth")).json() for running in (opened, keyed)]

    assert answers == [{"auth": False}, {"auth": True}]
