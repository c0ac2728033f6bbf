"""A service without keys: who may register, which client a request counts for, and which proxies are believed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from support.app import RunningApp, assert_error, running_app
from support.scorers import lookup
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from bandrank.api.addresses import is_loopback, network_of
from bandrank.api.hardening import hardening
from bandrank.errors import BadSetting
from bandrank.settings import Settings

REGISTER = {"candidates": [{"id": "a", "text": "man"}]}


@asynccontextmanager
async def reached_from(running: RunningApp, host: str, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application at an address, behind what uvicorn does with the headers of proxies."""
    told = hardening(settings)
    app = running.app
    if told["proxy_headers"]:
        app = ProxyHeadersMiddleware(app, told["forwarded_allow_ips"])  # type: ignore[assignment, arg-type]
    transport = httpx.ASGITransport(app, client=(host, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://bandrank") as client:
        yield client


async def registered(settings: Settings, host: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """The answer to PUT /candidates from an address; a DELETE from there gets the same status."""
    async with running_app(lookup(), settings=settings) as running, reached_from(running, host, settings) as client:
        put = await client.put("/candidates", json=REGISTER, headers=headers)
        delete = await client.request("DELETE", "/candidates", json={"ids": ["a"]}, headers=headers)
    assert put.status_code == delete.status_code
    return put


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
async def test_candidates_are_registered_from_this_machine(host: str) -> None:
    assert (await registered(Settings(device="cpu"), host)).status_code == 200


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "unknown", "", "localhost", "::ffff:0:1"]
)
async def test_candidates_are_not_registered_from_elsewhere(host: str) -> None:
    """The message names the settings with which an operator can allow other addresses to register."""
    message = assert_error(await registered(Settings(device="cpu"), host), 403, "forbidden")
    assert "BANDRANK_KEYS" in message
    assert "BANDRANK_REGISTER_FROM to anywhere" in message
    assert (await registered(Settings(device="cpu", register_from="anywhere"), host)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
    ids=str,
)
async def test_a_web_page_registers_nothing(headers: dict[str, str]) -> None:
    """A page of the same origin is refused too, because its host name may have been rebound to this machine."""
    for settings in (Settings(device="cpu"), Settings(device="cpu", register_from="anywhere")):
        assert "BANDRANK_KEYS" in assert_error(await registered(settings, "127.0.0.1", headers), 403, "forbidden")
    assert (await registered(Settings(device="cpu"), "127.0.0.1", {"Sec-Fetch-Site": "none"})).status_code == 200


async def test_everything_else_is_open_to_all() -> None:
    """Ranking, the models and the metrics are open, and a key that nobody asked for does no harm."""
    settings = Settings(device="cpu")
    async with (
        running_app(lookup(man=1.0), settings=settings) as running,
        reached_from(running, "192.0.2.1", settings) as client,
    ):
        ranked = await client.post(
            "/rerank", json={"query": "who", "candidates": ["man"]}, headers={"Authorization": "Bearer dummy"}
        )
        others = [await client.get(path) for path in ("/v1/models", "/metrics", "/healthz", "/openapi.json")]

    assert [answer.status_code for answer in (ranked, *others)] == [200] * 5


@pytest.mark.parametrize(
    ("proxy", "trusted", "headers"),
    [
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "203.0.113.9"}),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "127.0.0.1, 203.0.113.9"}),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}),
        ("127.0.0.1", "none", {"X-Forwarded-For": "127.0.0.1"}),
        ("10.1.2.3", "10.0.0.0/8", {"X-Forwarded-For": "127.0.0.1"}),
        ("192.0.2.1", "127.0.0.1,::1", {"X-Forwarded-For": "127.0.0.1"}),
        ("192.0.2.1", "0.0.0.0/0", {"X-Forwarded-For": "127.0.0.1"}),
        ("127.0.0.1", "127.0.0.1", {"Forwarded": "for=203.0.113.9"}),
        ("127.0.0.1", "127.0.0.1", {"X-Real-IP": "203.0.113.9"}),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-Port": "443"}),
        ("127.0.0.1", "127.0.0.1", {"Via": "1.1 proxy"}),
    ],
    ids=str,
)
async def test_what_a_proxy_passes_on_does_not_come_from_this_machine(
    proxy: str, trusted: str, headers: dict[str, str]
) -> None:
    """A request with a proxy's headers is never local, whoever the proxy is and whatever the headers claim."""
    answer = await registered(Settings(device="cpu", trusted_proxies=trusted), proxy, headers)

    assert_error(answer, 403, "forbidden")


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
        ("_x", "unknown"),
        ("", "unknown"),
    ],
)
async def test_a_client_is_an_address_or_its_network(host: str, client: str) -> None:
    """An IPv6 address counts by its /64 and an IPv4-mapped one as IPv4; whatever is no address counts as one client."""
    assert network_of(host) == client
    assert is_loopback(host) == (host == "::1")


@pytest.mark.parametrize(("text", "addresses"), [("none", []), ("", []), (" 10.0.0.0/8 , ::1", ["10.0.0.0/8", "::1"])])
async def test_trusted_proxies_are_addresses(text: str, addresses: list[str]) -> None:
    """With "none" or an empty setting nobody is trusted, and uvicorn ignores the headers of proxies."""
    told = hardening(Settings(trusted_proxies=text))

    assert told["forwarded_allow_ips"] == addresses
    assert told["proxy_headers"] is bool(addresses)


@pytest.mark.parametrize("text", ["*", "proxy", "10.0.0.1/8", "10.0.0.1;10.0.0.2"])
async def test_other_trusted_proxies_are_refused(text: str) -> None:
    """A star does not stand for everybody, and a host's name is not an address."""
    with pytest.raises(BadSetting, match="trusted_proxies must be addresses or networks, or none"):
        hardening(Settings(trusted_proxies=text))
