"""What a client gets when the search engine is dead, and addresses that are refused."""

from pathlib import Path
from typing import Any

import pytest
from support.app import ERROR_KEYS
from support.proxied import proxied
from support.redis_server import free_port

from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.proxy.app import READY
from bandrank.proxy.upstream import Upstream
from bandrank.settings import Settings

BODY: dict[str, Any] = {"query": {"match": {"title": "who"}}}
HEADERS = {"x-rerank": "title"}


@pytest.mark.parametrize("path", ["/docs/_search", "/_cluster/health"])
def test_a_dead_engine_is_a_clear_error(path: str) -> None:
    """The answer is a 502 with the body of every error and the request's id; the proxy still answers probes."""
    with proxied(f"http://127.0.0.1:{free_port()}") as proxy, proxy.client() as client:
        response = client.post(path, json=BODY, headers=HEADERS | {"x-request-id": "r-1"})
        assert response.status_code == 502
        assert response.json().keys() == ERROR_KEYS
        assert response.json()["message"] == "the search engine cannot be reached"
        assert response.headers["x-request-id"] == "r-1"
        assert client.get(READY).status_code == 200
        assert proxy.count("proxy_upstream_failures", reason="unreachable") == 1  # not of the client's own search too
        proxy.wait_for_count("proxy_requests", 1, outcome="unanswered")


def test_a_client_with_a_large_body_hears_of_a_dead_engine() -> None:
    """The proxy answers before the client has sent its whole body, and the client still gets the answer."""
    with proxied(f"http://127.0.0.1:{free_port()}") as proxy, proxy.client() as client:
        assert client.post("/_bulk", content=bytes(20 << 20)).status_code == 502
        assert client.get(READY).status_code == 200


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", "must be the address"),
        ("localhost:9200", "must be the address"),
        ("ftp://localhost", "must be the address"),
        ("http://localhost:9200/?x", "must be the address"),
        ("http://admin:secret@localhost", "must have no credentials"),
        ("http://localhost:port", "cannot be used"),
    ],
)
def test_an_address_that_cannot_be_used(url: str, expected: str) -> None:
    """The error names the setting, and does not show a password."""
    with pytest.raises(BadSetting, match=f"proxy_upstream {expected}") as refused:
        Upstream(Settings(proxy_upstream=url), Metrics())
    assert "secret" not in str(refused.value)


def test_authorities_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(BadSetting, match="proxy_ca must be a file"):
            Upstream(Settings(proxy_upstream="https://localhost", proxy_ca=str(path)), Metrics())
