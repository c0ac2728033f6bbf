"""Content types and encodings: what is read, what is refused, and that no web page gets through without a preflight."""

import gzip
import json
from pathlib import Path

import pytest
from support.app import assert_error, running_app
from support.keys import KEYS, write_keys
from support.scorers import lookup

from bandrank.settings import Settings

BODY = json.dumps({"query": "who", "candidates": ["man"]}).encode()
LINES = b'{"id": "a", "text": "man"}\n{"id": "b", "text": "she"}\n'
ENDPOINTS = [("POST", "/rerank"), ("POST", "/explain"), ("PUT", "/candidates"), ("DELETE", "/candidates")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"content-type": "Application/JSON ; charset=UTF-8", "origin": "http://page"},
        {"content-encoding": "identity"},
        {"content-encoding": ""},
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
async def test_json_is_read(headers: dict[str, str]) -> None:
    """Some clients send no Content-Type at all."""
    async with running_app(lookup()) as running:
        response = await running.client.post("/rerank", content=BODY, headers=headers)

    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"content-type": "text/plain"}, "Content-Type 'text/plain': send application/json"),
        ({"content-type": "application/x-www-form-urlencoded"}, "send application/json"),
        ({"content-type": "multipart/form-data; boundary=application/json"}, "'multipart/form-data'"),
        ({"content-type": "text/plain, application/json"}, "'text/plain, application/json'"),
        ({"origin": "http://page"}, "Content-Type '': send application/json"),
        ({"origin": "null"}, "Content-Type ''"),
        ({"sec-fetch-site": "cross-site"}, "Content-Type ''"),
        ({"content-encoding": "gzip"}, "Content-Encoding 'gzip': send the body uncompressed"),
        ({"content-encoding": "GZIP, br", "content-type": "application/json"}, "'gzip, br'"),
    ],
    ids=str,
)
async def test_anything_else_is_refused(
    method: str, path: str, headers: dict[str, str], says: str, tmp_path: Path
) -> None:
    """The message says what to send. The clients here have a key, because no web page may register without one."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    key = KEYS["register" if path == "/candidates" else "rank"]
    async with running_app(lookup(), settings=settings) as running:
        response = await running.client.request(method, path, content=BODY, headers=headers | {"X-API-Key": key})

    assert says in assert_error(response, 415, "unsupported_media")


async def test_compressed_lines_are_refused() -> None:
    """Compressed bytes would otherwise count as lines that cannot be read, which is no error of the request."""
    headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    async with running_app(lookup()) as running:
        response = await running.client.put("/candidates", content=gzip.compress(LINES), headers=headers)
        assert_error(await running.rerank({"query": "who", "candidates": [{"id": "a"}]}), 404, "unknown_candidates")

    assert_error(response, 415, "unsupported_media")
