"""Starting infinity and asking it for scores; a program that tells how it was started stands in for it."""

import itertools
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from bandrank_bench.infinity import Configuration, find, running_infinity, score, versions

# Answers every request with its arguments, its folder and its DO_NOT_TRACK.
SERVICE = f"""#!{sys.executable}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([sys.argv[1:], os.getcwd(), os.environ["DO_NOT_TRACK"]]).encode())

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_missing_program_is_an_error_that_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"make \.venv-infinity/stamp"):
        find(tmp_path)


def test_the_service_is_started_as_configured_and_stopped(tmp_path: Path) -> None:
    """The service runs on a free port, which is closed at the end, and may not report on its users."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "infinity_emb"
    program.write_text(SERVICE)
    program.chmod(0o755)
    how = Configuration(dtype="bfloat16", batch_size=16)
    with running_infinity(find(tmp_path), tmp_path, how, tmp_path / "log") as service:
        arguments, folder, untracked = httpx.get(f"{service.url}/").json()
    assert arguments[0] == "v2"
    options = dict(itertools.pairwise(arguments))
    assert (options["--model-id"], folder) == (".", str(tmp_path))
    assert (options["--engine"], options["--dtype"], options["--batch-size"]) == ("torch", "bfloat16", "16")
    assert untracked == "1"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/")


def test_versions_are_those_of_its_own_environment(tmp_path: Path) -> None:
    """The versions come from the environment of infinity, not from that of the benchmark."""
    assert versions(tmp_path) == ""
    told = tmp_path / "lib" / "python3.11" / "site-packages" / "torch-1.2.3.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    assert versions(tmp_path) == "torch 1.2.3"


def test_scores_come_in_the_order_of_the_passages() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert asked["documents"] == ["a", "b"]
        assert asked["raw_scores"] is True
        results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": -2.0}]
        return httpx.Response(200, json={"results": results})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://service") as client:
        np.testing.assert_array_equal(score(client, "q", ["a", "b"]), np.array([-2.0, 0.5], np.float32))
