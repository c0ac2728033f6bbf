"""Another service, started and asked; a program that tells how it was started stands in for it."""

import itertools
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from bandrank_bench.infinity import Configuration, find, running_infinity, score

# Answers /health, and all else with its arguments and what its environment forbids.
SERVICE = f"""#!{sys.executable}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([sys.argv[1:], os.environ["DO_NOT_TRACK"]]).encode())

port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_missing_program_is_an_error_that_says_how_to_install_it(tmp_path: Path) -> None:
    """It names the verb of make."""
    with pytest.raises(FileNotFoundError, match=r"make \.venv-infinity/stamp"):
        find(tmp_path)


def test_the_service_is_started_as_configured_and_stopped(tmp_path: Path) -> None:
    """Offline, on a free port, which is closed at the end."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "infinity_emb"
    program.write_text(SERVICE)
    program.chmod(0o755)
    how = Configuration(dtype="bfloat16", batch_size=16)
    with running_infinity(find(tmp_path), tmp_path, how, tmp_path / "log") as service:
        arguments, untracked = httpx.get(f"{service.url}/").json()
    assert arguments[0] == "v2"
    options = dict(itertools.pairwise(arguments))
    assert options["--model-id"] == str(tmp_path)
    assert (options["--engine"], options["--dtype"], options["--batch-size"]) == ("torch", "bfloat16", "16")
    assert untracked == "1"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/")


def test_scores_come_in_the_order_of_the_passages() -> None:
    """However they are ordered in the answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        assert asked["documents"] == ["a", "b"]
        assert asked["raw_scores"] is True
        results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": -2.0}]
        return httpx.Response(200, json={"results": results})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://service") as client:
        np.testing.assert_array_equal(score(client, "q", ["a", "b"]), np.array([-2.0, 0.5], np.float32))
