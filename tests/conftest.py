"""Settings and fixtures of all tests: asyncio, hypothesis, torch on one thread, no proxy, a Redis server."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.redis_server import RedisServer, redis_server

# A deadline would make results depend on the speed of the machine; `print_blob` prints how to reproduce a failure.
settings.register_profile("bandrank", deadline=None, print_blob=True)
settings.load_profile("bandrank")

# The tensors of tests are so small that one thread is done before a second has woken up.
torch.set_num_threads(1)

# All servers of the tests are on this machine, so a proxy that its environment names must not be used.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from scanning the collected items, which live to the end: that would take seconds."""
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
