"""What is said before any model is loaded: each of these services has a model that is not there."""

import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from support.redis_server import free_port

from bandrank.__main__ import main
from bandrank.errors import BadSetting
from bandrank.preflight import preflight
from bandrank.settings import Settings

NO_KEYS = "there are no keys (BANDRANK_KEYS): whoever reaches {} may rank"


@pytest.mark.parametrize(
    ("command", "flags", "told"),
    [
        ("serve", ["--keys", "/nowhere/keys.toml"], "/nowhere/keys.toml cannot be read: No such file or directory"),
        ("proxy", [], "BANDRANK_PROXY_UPSTREAM must be the address of a search engine, as in http://localhost:9200"),
        ("proxy", ["--proxy-upstream", "http://search:x"], "BANDRANK_PROXY_UPSTREAM cannot be used: Port could not be"),
        ("serve", ["--tls-certificate", "/nowhere.pem"], "BANDRANK_TLS_"),
        ("serve", ["--host", "no.such.host.invalid"], "BANDRANK_PORT [0-9]+ of no.such.host.invalid cannot be used: "),
        (
            "precompute /nowhere.jsonl",
            [],
            "BANDRANK_REDIS_URL must be set: representations have to outlive this process",
        ),
        ("precompute /nowhere.jsonl", ["--redis-url", "redis://localhost"], "/nowhere.jsonl is no file; give the path"),
        ("serve", ["--host", "192.0.2.1"], "BANDRANK_PORT [0-9]+ of 192.0.2.1 cannot be used: cannot assign requested"),
    ],
)
def test_a_setting_that_cannot_be_used(
    command: str, flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which, and the exit code is 2."""
    assert main([*command.split(), "--model", str(tmp_path), "--port", str(free_port()), *flags]) == 2

    assert re.fullmatch(f"bandrank: {told}.*\n", capsys.readouterr().err)


def test_a_port_in_use() -> None:
    """Where another service listens; one of its connections that is only just closed is no hindrance."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadSetting, match=r"of 127\.0\.0\.1 cannot be used: address already in use"):
            preflight(Settings(port=port), proxy=False)
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = other.accept()
        accepted.close()  # first, so that this side waits for the last packets
        client.close()

    preflight(Settings(port=port), proxy=False)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({}, False), ({"host": "localhost"}, False), ({"host": "0.0.0.0"}, True)],  # noqa: S104  # nothing is served
)
def test_a_port_that_is_open_to_all_is_warned_of(
    settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there are no keys, and other machines reach it."""
    with caplog.at_level(logging.WARNING, logger="bandrank"):
        preflight(Settings(port=free_port(), **settings), proxy=False)

    assert caplog.messages == ([NO_KEYS.format(settings["host"])] if warned else [])
