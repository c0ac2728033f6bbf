"""What all tests share: the event loop, how hypothesis draws, torch on one thread, and no proxy."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.redis_server import RedisServer, redis_server

# A deadline would time the machine; a failure prints the line that repeats it.
settings.register_profile("bandrank", deadline=None, print_blob=True)
settings.load_profile("bandrank")

# Tensors this small are done before a second thread has woken up.
torch.set_num_threads(1)

# All that they ask is on this machine, which may be behind a proxy.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: looking through it for garbage again and again would take seconds."""
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
