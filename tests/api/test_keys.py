"""API keys over HTTP: how they are presented, and what each allows."""

from pathlib import Path

import httpx
import pytest
from support.app import RunningApp, assert_error, running_app
from support.keys import KEYS, key_table, write_keys
from support.scorers import lookup
from support.server import Scrape

from bandrank.settings import Settings

BODY = {"query": "who", "candidates": ["man", "she"]}
ENDPOINTS = [
    ("POST", "/rerank", BODY, "rank"),
    ("POST", "/explain", {"query": "who", "candidate": "man"}, "rank"),
    ("GET", "/v1/models", None, "rank"),
    ("PUT", "/candidates", {"candidates": [{"id": "a", "text": "man"}]}, "register"),
    ("DELETE", "/candidates", {"ids": ["a"]}, "register"),
    *(("GET", path, None, "admin") for path in ("/metrics", "/_bandrank/metrics")),
]
OPEN = ["/healthz", "/readyz", "/_bandrank/healthz", "/_bandrank/readyz", "/openapi.json", "/", "/page/main.js"]


def with_keys(path: Path, **tables: str) -> Settings:
    """Settings with a file of these tables, or of the keys rank, register and admin, each with that scope."""
    return Settings(device="cpu", keys=write_keys(path / "keys.toml", **tables))


async def ask(running: RunningApp, method: str, path: str, body: object, **headers: str) -> httpx.Response:
    """The answer to a request with these headers."""
    return await running.client.request(method, path, json=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "body", "scope"), ENDPOINTS)
async def test_a_key_opens_what_its_scope_names_and_nothing_else(
    method: str, path: str, body: object, scope: str, tmp_path: Path
) -> None:
    """No key and an unknown one get 401; a key of another scope gets 403, which names the scope that it lacks."""
    async with running_app(lookup(man=1.0), settings=with_keys(tmp_path)) as running:
        for name, key in KEYS.items():
            answer = await ask(running, method, path, body, Authorization=f"Bearer {key}")
            if name == scope:
                assert answer.status_code == 200, answer.text
            else:
                assert f"lacks the scope '{scope}'" in assert_error(answer, 403, "forbidden")
        for headers in ({}, {"Authorization": "Bearer none-of-them"}):
            refused = await ask(running, method, path, body, **headers)
            assert_error(refused, 401, "unauthorized")
            assert refused.headers["www-authenticate"] == "Bearer"


async def test_probes_need_no_key(tmp_path: Path) -> None:
    """Whoever probes has no key, and neither the page nor the description of the API is a secret."""
    async with running_app(lookup(), settings=with_keys(tmp_path)) as running:
        assert [(await running.client.get(path)).status_code for path in OPEN] == [200] * len(OPEN)


@pytest.mark.parametrize("name", ["Authorization", "authorization", "X-API-Key", "x-api-key", "api-key", "API-KEY"])
async def test_a_key_may_be_in_any_of_three_headers(name: str, tmp_path: Path) -> None:
    """Clients of other services send these headers; the same key in two of them is one key, two keys are refused."""
    value = KEYS["rank"]
    value = f"bEARER  {value} " if name.lower() == "authorization" else value
    async with running_app(lookup(man=1.0), settings=with_keys(tmp_path)) as running:
        alone = await ask(running, "POST", "/rerank", BODY, **{name: value})
        twice = await ask(running, "POST", "/rerank", BODY, **{name: value, "X-Api-Key": KEYS["rank"]})
        both = await ask(running, "POST", "/rerank", BODY, **{name: value, "X-Api-Key": KEYS["admin"]})

    assert (alone.status_code, twice.status_code) == (200, 200)
    if name.lower() != "x-api-key":
        assert_error(both, 401, "unauthorized")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Authorization": KEYS["rank"]}, id="no scheme"),
        pytest.param({"Authorization": f"Basic {KEYS['rank']}"}, id="another scheme"),
        pytest.param({"Authorization": "Bearer"}, id="scheme alone"),
        pytest.param({"Authorization": "Bearer "}, id="empty"),
        pytest.param({"X-API-Key": ""}, id="empty header"),
        pytest.param({"X-API-Key": KEYS["rank"][:-1]}, id="cut"),
        pytest.param({"X-API-Key": KEYS["rank"] + "x"}, id="longer"),
        pytest.param({"X-API-Key": "key\xe9"}, id="bytes"),
        pytest.param({"Authorization": f"Bearer {KEYS['rank']}, Bearer {KEYS['rank']}"}, id="list"),
        pytest.param({"Cookie": f"api-key={KEYS['rank']}"}, id="cookie"),
    ],
)
async def test_an_unknown_or_malformed_key_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    async with running_app(lookup(), settings=with_keys(tmp_path)) as running:
        answer = await running.client.post("/rerank", json=BODY, headers=sent)

    assert_error(answer, 401, "unauthorized")


async def test_a_rate_is_a_budget_of_requests(tmp_path: Path) -> None:
    """Beyond its rate a key gets 429 with whole seconds to wait; forbidden requests and other keys do not count."""
    settings = with_keys(
        tmp_path, rank=key_table("rank", requests_per_s=2e-9), admin=key_table("admin", requests_per_s=3.5e-9)
    )
    async with running_app(lookup(man=1.0), settings=settings) as running:
        admin = {"Authorization": f"Bearer {KEYS['admin']}"}
        forbidden = await ask(running, "POST", "/rerank", BODY, **admin)
        first, second = [
            await ask(running, "POST", "/rerank", BODY, Authorization=f"Bearer {KEYS['rank']}") for _ in "ab"
        ]
        scraped = await ask(running, "GET", "/metrics", None, **admin)

    assert_error(forbidden, 403, "forbidden")
    assert first.status_code == scraped.status_code == 200
    assert_error(second, 429, "overloaded")
    assert int(second.headers["retry-after"]) == 500_000_000


async def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    """Refusals of ranking requests count apart; one by a key's rate must not look like an overload, or hide one."""
    settings = with_keys(tmp_path, rank=key_table("rank", requests_per_s=1e-9), admin=key_table("admin"))
    async with running_app(lookup(man=1.0), settings=settings) as running:
        for key in (KEYS["rank"], KEYS["rank"], "unknown", KEYS["admin"]):
            await ask(running, "POST", "/rerank", BODY, **{"X-API-Key": key})
        for _ in range(2):
            await ask(running, "GET", "/v1/models", None, **{"X-API-Key": KEYS["rank"]})
        await ask(running, "POST", "/inference/cross/tiny", {"input": []}, **{"X-API-Key": KEYS["rank"]})
        text = b"".join(running.service.metrics.exposition()).decode()

    counted = Scrape(text)
    refused = {
        (reason, kind): counted.value("bandrank_refused_requests_total", reason=reason, kind=kind)
        for reason in ("unauthorized", "forbidden", "rate")
        for kind in ("ranking", "other")
    }
    assert list(refused.values()) == [1, 0, 1, 0, 2, 2]
    assert counted.value("bandrank_requests_total", status="429") == refused["rate", "ranking"]
    assert 'bandrank_requests_total{status="401"} 1.0' in text


async def test_the_api_describes_how_to_present_a_key() -> None:
    """Endpoints that need a key have the three headers as alternatives, and the answers to a request without one."""
    async with running_app(lookup()) as running:
        document = (await running.client.get("/openapi.json")).json()

    schemes = document["components"]["securitySchemes"]
    assert (schemes["bearer"]["type"], schemes["bearer"]["scheme"]) == ("http", "bearer")
    assert {scheme.get("name") for scheme in schemes.values()} == {None, "X-API-Key", "api-key"}
    for method, path, *_ in ENDPOINTS:
        operation = document["paths"][path][method.lower()]
        assert operation["security"] == [{name: []} for name in schemes]
        for status in ("401", "403", "429"):
            reference = operation["responses"][status]["content"]["application/json"]["schema"]["$ref"]
            assert reference.endswith("/ErrorBody")
    assert "422" not in document["paths"]["/metrics"]["get"]["responses"]
    assert not any("security" in document["paths"][path]["get"] for path in ("/healthz", "/readyz"))
