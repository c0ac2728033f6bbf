"""The page at / as it is served: its files, their types, and the policy under which a browser runs them."""

import re
from pathlib import Path

import httpx
import pytest
from support.app import running_app
from support.keys import write_keys
from support.listening import listening
from support.scorers import lookup

from bandrank.api.page.router import FILES
from bandrank.settings import Settings

NAMES = sorted(file.name for file in FILES.iterdir())
LINK = re.compile(r'(?:(?:src|href|from)[ =]|import) ?"([^"]+)"')


async def test_every_file_is_served_with_its_type(tmp_path: Path) -> None:
    """The page needs no key, because users enter theirs on it; the description of the API leaves it out."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    async with running_app(lookup(), settings=settings) as running:
        for name in NAMES:
            path = "/" if name == "index.html" else f"/page/{name}"
            answer = await running.client.get(path)
            head = await running.client.head(path)
            assert answer.content == (FILES / name).read_bytes()
            assert answer.headers["content-type"].split("/")[0] in {"text", "image"}
            assert (head.status_code, head.headers["content-type"]) == (200, answer.headers["content-type"])
        for path in ("/page", "/page/", "/page/main.ts", "/page/../app.py", "/page/%2e%2e/router.py"):
            assert (await running.client.get(path)).status_code == 404
        assert (await running.client.post("/")).status_code == 405
        described = (await running.client.get("/openapi.json")).json()["paths"]

    assert not {path for path in described if path == "/" or path.startswith("/page")}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_loads_nothing_from_elsewhere(name: str) -> None:
    """A file names only files beside it and endpoints, and the markup has neither inline scripts nor inline styles."""
    text = (FILES / name).read_text(encoding="utf-8")
    named = {link.removeprefix("page/").removeprefix("./") for link in LINK.findall(text)}

    assert named <= {*NAMES, "openapi.json", "metrics", "readyz", "v1/models"}
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}  # the name of SVG's namespace
    assert not re.search(r"@import|\burl\(|innerHTML|document\.write|\beval\(|localStorage|sessionStorage|cookie", text)
    if name == "index.html":
        assert not re.search(r"<style|style=|\son\w+=|<script(?! type=\"module\" src=)|javascript:", text)


def test_a_browser_may_run_the_page_alone() -> None:
    """The page's policy allows its own files and nothing inline; other answers keep the policy that allows nothing."""
    with listening() as service, service.client() as client:
        page = client.get("/")
        others = [client.get(path) for path in ("/page/main.js", "/healthz", "/nothing", "//", "/?x", "/%2f")]

    policies = page.headers.get_list("content-security-policy")
    assert len(policies) == 1
    allowed = dict(part.strip().partition(" ")[::2] for part in policies[0].split(";"))
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    assert allowed["frame-ancestors"] == "'none'"
    assert {allowed[kind] for kind in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert "unsafe" not in policies[0]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    strict = "default-src 'none'; frame-ancestors 'none'"
    for answer in others:
        assert (answer.headers["content-security-policy"] == strict) == (answer.url.path != "/"), answer.url


def test_what_the_page_sends_is_answered() -> None:
    """Requests of the service's own page, with the headers of a browser, rank and explain, but register nothing."""
    with listening() as service, service.client() as client:
        marks = {"origin": service.url, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
        ranked = client.post("/rerank", json={"query": "who", "candidates": ["man"]}, headers=marks)
        explained = client.post("/explain", json={"query": "who", "candidate": "man"}, headers=marks)
        registered = client.put("/candidates", json={"candidates": []}, headers=marks)

    assert ranked.status_code == explained.status_code == httpx.codes.OK
    assert registered.status_code == httpx.codes.FORBIDDEN  # the page's host name may have been rebound to this machine
