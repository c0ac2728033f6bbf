"""A search engine and a proxy in front of it, for all tests of a module."""

from collections.abc import Iterator

import pytest
from support.proxied import Proxied, proxied
from support.search_engine import SearchEngine, running_engine

SHARED = "proxy", "ruled"  # fixtures that tests of a module share


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[SearchEngine]:
    """A search engine that holds the test module's `DOCUMENTS`."""
    with running_engine(SearchEngine(request.module.DOCUMENTS)) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(engine: SearchEngine) -> Iterator[Proxied]:
    """A proxy in front of `engine`, or of the module's own, with the default settings."""
    with proxied(engine.url) as running:
        yield running


@pytest.fixture(autouse=True)
def _all_counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that compares counts with those of before must not get one of the test before, late."""
    used = [request.getfixturevalue(name) for name in SHARED if name in request.fixturenames]
    yield
    for each in used:
        each.wait_until_finished()
