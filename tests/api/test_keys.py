"""API keys over HTTP: how they are presented, what each allows, and how the file of keys changes under the service."""

import gc
import logging
import os
import sys
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from support.app import RunningApp, assert_error, running_app
from support.keys import KEYS, key_table, write_keys
from support.scorers import lookup
from support.server import Scrape

from bandrank.api.keys import KeyFile
from bandrank.errors import BadSetting
from bandrank.settings import Settings

pytestmark = pytest.mark.anyio

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
        {"Authorization": KEYS["rank"]},
        {"Authorization": f"Basic {KEYS['rank']}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"X-API-Key": ""},
        {"X-API-Key": KEYS["rank"][:-1]},
        {"X-API-Key": KEYS["rank"] + "x"},
        {"X-API-Key": "key\xe9"},
        {"Authorization": f"Bearer {KEYS['rank']}, Bearer {KEYS['rank']}"},
        {"Cookie": f"api-key={KEYS['rank']}"},
    ],
    ids=[
        "no scheme",
        "another scheme",
        "scheme alone",
        "empty",
        "empty header",
        "cut",
        "longer",
        "bytes",
        "list",
        "cookie",
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
        text = running.service.metrics.exposition().decode()

    counted = Scrape(text)
    refused = {
        (reason, kind): counted.value("bandrank_refused_requests_total", reason=reason, kind=kind)
        for reason in ("unauthorized", "forbidden", "rate")
        for kind in ("ranking", "other")
    }
    assert list(refused.values()) == [1, 0, 1, 0, 2, 2]
    assert counted.value("bandrank_requests_total", status="429") == refused["rate", "ranking"]
    assert 'bandrank_requests_total{status="401"} 1.0' in text


async def test_a_client_goes_by_the_name_and_the_share_of_its_key(tmp_path: Path) -> None:
    """A prefix keeps the name of a key apart from any address."""
    keys = KeyFile(write_keys(tmp_path / "keys.toml", **{"127-0-0-1": key_table("rank", share=0.25)}))
    found = keys.find(KEYS["rank"].encode())

    assert found is not None
    assert (found.client.name, found.client.share) == ("key:127-0-0-1", 0.25)


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, " cannot be read: No such file or directory"),
        ("[search]\nsha256 = SECRET", " is not valid TOML: at line 2, column 10"),
        ("[search]\nsha256 = 'SECRET", " is not valid TOML: at "),
        ("[search]\n[search]\n", " is not valid TOML: the name of a key comes twice, at line 2, column 8"),
        ("[search]\nscopes = ['rank']", ": search.sha256 is missing"),
        ("[search]\nsha256 = 'SECRET'\nscopes = ['rank']", ": search.sha256 must be 64 hexadecimal digits"),
        (
            "[search]\nSECRET = 1\nsha256 = 'DIGEST'\nscopes = ['rank']",
            ": search has a field that is not one of sha256, ",
        ),
        ("[search]\nsha256 = 'DIGEST'", ": search.scopes is missing"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = []", ": search.scopes must have at least 1 item"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = 'rank'", ": search.scopes must be a valid list"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = ['SECRET']", ": search.scopes must be 'rank', 'register' or 'admin'"),
        ("[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nshare = 1.0", ": search.share must be less than 1"),
        (
            "[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nrequests_per_s = 0",
            ": search.requests_per_s must be greater",
        ),
        (
            "[search]\nsha256 = 'DIGEST'\nscopes = ['rank']\nrequests_per_s = inf",
            ": search.requests_per_s must be a finite",
        ),
        ("search = 'SECRET'", ": search must be a table"),
        ("['SECRET is a name']\nsha256 = 'DIGEST'\nscopes = ['rank']", ": table 1 has a name that is not "),
        (
            "[one]\nsha256='DIGEST'\nscopes=['rank']\n[two]\nsha256='digest'\nscopes=['rank']",
            ": two.sha256 must differ from that of one",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_by_name(text: str | None, expected: str, tmp_path: Path) -> None:
    """The message names the file, the table and the fault, and repeats nothing that may be a key."""
    path = tmp_path / "keys.toml"
    if text is not None:
        path.write_text(text.replace("DIGEST", "AB" * 32).replace("digest", "ab" * 32), encoding="utf-8")

    with pytest.raises(BadSetting) as refused:
        KeyFile(str(path))
    assert str(refused.value).startswith(f"{path}{expected}")
    assert "SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None


async def test_a_changed_file_counts_at_once_and_a_broken_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A removed key stops working, and a file that cannot be read changes nothing and is logged once."""
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank"), two=key_table("admin")), clock=lambda: now)

    def known() -> list[bool]:
        nonlocal now
        now += 1.0
        return [keys.find(KEYS[name].encode()) is not None for name in ("rank", "register", "admin")]

    assert known() == [True, False, True]
    write_keys(path, one=key_table("rank"))
    assert known() == [True, False, False]
    with caplog.at_level(logging.ERROR):
        for broken in ("[one", f"[one]\nsha256 = '{KEYS['rank']}'"):
            caplog.clear()
            path.write_text(broken, encoding="utf-8")
            assert [known() for _ in range(3)] == [[True, False, False]] * 3
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert str(path) in caplog.text
            assert not any(key in caplog.text for key in KEYS.values())
        caplog.clear()
        path.unlink()
        assert [known() for _ in range(3)] == [[True, False, False]] * 3
        assert len(caplog.records) == 1
    replaced = tmp_path / "new.toml"
    write_keys(replaced, three=key_table("register"))
    os.utime(replaced, ns=(0, 0))
    replaced.rename(path)
    with caplog.at_level(logging.INFO):
        assert known() == [False, True, False]
    assert caplog.messages[-1] == "read again: the keys three"
    path.write_text("", encoding="utf-8")
    with caplog.at_level(logging.INFO):
        assert known() == [False, False, False]
    assert caplog.messages[-1] == "read again: the file of keys is empty, so nobody is admitted"


async def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank")), clock=lambda: now)
    write_keys(path, one=key_table("register"))
    now = 0.9
    assert keys.find(KEYS["rank"].encode()) is not None
    now = 1.0
    assert keys.find(KEYS["rank"].encode()) is None


@pytest.mark.parametrize("key", ["none", "tenant 999"])
def test_a_key_is_found_in_as_many_steps_among_many(key: str, tmp_path: Path) -> None:
    """If the search took a step per key, requests with invented keys would hold everybody up."""

    def steps(count: int) -> int:
        tables = {
            f"tenant-{number}": f'sha256 = "{sha256(b"tenant %d" % number).hexdigest()}"\nscopes = ["rank"]\n'
            for number in range(1000 - count, 1000)
        }
        keys = KeyFile(write_keys(tmp_path / f"{count}.toml", **tables))
        taken: list[str] = []
        gc.disable()  # a collection of garbage has steps of its own
        sys.setprofile(lambda _, event, __: taken.append(event))
        try:
            found = keys.find(key.encode())
        finally:
            sys.setprofile(None)
            gc.enable()
        assert (found is None) == (key == "none")
        return len(taken)

    assert steps(300) == steps(1)


async def test_the_rate_of_a_key_survives_a_change_of_others(tmp_path: Path) -> None:
    """A key's used budget stays used while other keys change; a key whose own rate changes starts afresh."""
    now = 0.0
    path = tmp_path / "keys.toml"
    keys = KeyFile(write_keys(path, one=key_table("rank", requests_per_s=0.01)), clock=lambda: now)

    def take() -> float:
        found = keys.find(KEYS["rank"].encode())
        assert found is not None
        assert found.bucket is not None
        return found.bucket.take()

    assert take() == 0
    write_keys(path, one=key_table("rank", requests_per_s=0.01), two=key_table("admin"))
    now = 10.0
    assert take() == pytest.approx(90)
    assert keys.names == ["one", "two"]
    write_keys(path, one=key_table("rank", requests_per_s=0.02), two=key_table("admin"))
    now = 20.0
    assert take() == 0


async def test_a_bucket_holds_a_second_of_its_rate(tmp_path: Path) -> None:
    """A rate of 3 per second allows three requests at once, then one each third of a second; 0.5 allows one at once."""
    now = 0.0
    path = write_keys(
        tmp_path / "keys.toml", one=key_table("rank", requests_per_s=3), two=key_table("admin", requests_per_s=0.5)
    )
    keys = KeyFile(path, clock=lambda: now)
    fast, slow = (keys.find(KEYS[name].encode()) for name in ("rank", "admin"))
    assert fast is not None
    assert slow is not None
    assert fast.bucket is not None
    assert slow.bucket is not None

    now = 100.0
    assert [fast.bucket.take() for _ in range(3)] == [0, 0, 0]
    assert fast.bucket.take() == pytest.approx(1 / 3)
    assert (slow.bucket.take(), slow.bucket.take()) == (0, 2)
    now += 0.34
    assert (fast.bucket.take(), fast.bucket.take() > 0) == (0, True)
