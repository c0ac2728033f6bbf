"""The benchmark on the real service, with a tiny model: what the generator counts is what the service counts."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import pytest
from support.models import save_sparse_cross_encoder
from support.plain_http import get
from support.server import Scrape

from bandrank_bench.overload import command
from bandrank_bench.overload.loops import Sender, Window, open_loop
from bandrank_bench.overload.report import BEGIN, END
from bandrank_bench.overload.requests import requests
from bandrank_bench.service import running_service


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_sparse_cross_encoder(tmp_path_factory.mktemp("overload") / "model")


@pytest.mark.slow
def test_every_request_is_accounted_for(model: Path, tmp_path: Path) -> None:
    """Of a burst beyond what may wait, each request is answered or refused, and the service counts as many of each."""
    stream = requests(seed=0, numbers=itertools.count(1_000_000), candidates=(10,), fields={})
    burst = Sender(list(itertools.islice(stream, 100)), [0.0] * 100)
    settings = {"MODEL": str(model), "DEVICE": "cpu", "MAX_WAITING_ROWS": "20000"}  # some eight requests
    with running_service(settings, tmp_path / "service.log") as service:
        ((*outcomes,),), busy = asyncio.run(open_loop(service, [burst], Window(0.0, 1.0), 60.0))
        counted = Scrape(get(f"{service.url}/metrics").text)

    kinds = Counter(outcome.kind for outcome in outcomes)
    assert kinds.keys() == {"answered", "refused"}
    assert kinds.total() == 100
    assert counted.value("bandrank_requests_total", status="200") == kinds["answered"]
    assert counted.value("bandrank_requests_total", status="429") == kinds["refused"]
    assert busy.service > 0


@pytest.mark.slow
def test_the_command_writes_the_section_and_its_plot(model: Path, tmp_path: Path) -> None:
    """The command keeps what others wrote on the page."""
    page = tmp_path / "operations.md"
    page.write_text("# Operations\n\n## Start\n", encoding="utf-8")
    short = ["--seconds", "1", "--warm-up", "0.5", "--capacity-seconds", "0.5", "--polite-seconds", "1"]

    code = command.main(["--model", str(model), "--rates", "1.5", "--candidates", "10", *short, "--out", str(page)])

    text = page.read_text(encoding="utf-8")
    assert code == 0
    assert text.startswith(f"# Operations\n\n## Start\n\n{BEGIN}\n## Overload\n")
    assert "\n| 1.5 x |" in text
    assert text.endswith(f"{END}\n")
    assert (tmp_path / "overload.svg").exists()
