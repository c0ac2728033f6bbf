"""The limit on open files has room for the connections that the settings allow."""

import logging
import resource
from collections.abc import Iterator

import pytest

from bandrank.api import connections
from bandrank.api.connections import RESERVED_FILES, ConnectionLimits, Connections
from bandrank.metrics import Metrics

LIMITS = ConnectionLimits(max_connections=1024, reserved=16)


@pytest.fixture
def low_limit() -> Iterator[None]:
    """A limit of 1,024 open files, which may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("outgoing", [0, 600])
def test_the_limit_is_raised_for_both_directions(outgoing: int) -> None:
    """As many files may be open as there may be connections from clients and, for a proxy, to the search engine."""
    Connections(LIMITS, Metrics(), outgoing=outgoing)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1024 + outgoing + 16 + RESERVED_FILES
    assert soft == (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))


@pytest.mark.parametrize(
    ("files", "outgoing", "most"), [(256, 0, 112), (256, 128, 56), (1024, 128, 752), (100, 0, 1), (100, 128, 1)]
)
def test_a_limit_that_cannot_be_raised_is_shared(
    files: int, outgoing: int, most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If too few files may be open, fewer clients may connect, each with one connection to the search engine."""
    monkeypatch.setattr(connections, "allow_files", lambda _: files)
    with caplog.at_level(logging.WARNING, logger=connections.__name__):
        Connections(LIMITS, Metrics(), outgoing=outgoing)

    assert f"{most} instead of 1024" in caplog.text
