"""Fixtures and settings for all tests: the event loop, hypothesis, one torch thread, no proxy."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.redis_server import RedisServer, redis_server

# A deadline would time the machine. A failure prints the line that reproduces it.
settings.register_profile("bandrank", deadline=None, print_blob=True)
settings.load_profile("bandrank")

# The tensors of tests are too small for a second thread to help.
torch.set_num_threads(1)

# Tests ask only servers on this machine, even where a proxy is configured.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from scanning the collected tests again and again, which would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    """The service runs on asyncio alone."""
    return "asyncio"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that the test may stop or fill."""
    with redis_server(tmp_path / "redis") as running:
        yield running
