"""A stand-in for bandrank, and the set-ups of search engines run in this process."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import client
import pytest
from support.deploy import PASSWORD
from support.recording import RecordedCall, serving_calls


@pytest.fixture(scope="module")
def password_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file like the one that the stack's login leaves."""
    file = tmp_path_factory.mktemp("login") / "password"
    file.write_text(PASSWORD + "\n", encoding="ascii")
    return file


def equal_scores(call: RecordedCall) -> Any:
    """Returns the answer of a re-ranker that scores all texts alike, in the wire format of the question."""
    if "texts" in call.body:
        return [{"index": index, "score": 0.5} for index in range(len(call.body["texts"]))]
    if "top_n" in call.body:
        return {"results": [{"index": index, "relevance_score": 0.5} for index in range(call.body["top_n"])]}
    return {"scores": [{"document": text, "score": 0.5} for text in call.body["documents"]]}


@pytest.fixture(scope="module")
def reranker() -> Iterator[str]:
    """Yields the address of a stand-in for bandrank. The tests of test_search_demo.py have the real one."""
    with serving_calls(equal_scores) as address:
        yield address


@pytest.fixture
def run(password_file: Path, reranker: str) -> Callable[..., None]:
    """Returns a function that runs a set-up in this process, with the engine's URL and perhaps further options."""

    def run(set_up: Callable[[argparse.Namespace], None], url: str, user: str = "elastic", **others: Any) -> None:
        parser = client.command_line("test", url=url, user=user)
        given = parser.parse_args(["--password-file", str(password_file), "--wait-s", "0", "--reranker", reranker])
        set_up(argparse.Namespace(**{**vars(given), **others}))

    return run
