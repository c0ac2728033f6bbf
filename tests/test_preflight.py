"""What is checked before any model is loaded: the commands here name a folder that holds no model."""

import json
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

NO_KEYS = "no API keys are set (BANDRANK_KEYS): anyone who can reach {} may rank"


@pytest.mark.parametrize(
    ("command", "flags", "told"),
    [
        ("serve", ["--keys", "/nowhere/keys.toml"], "/nowhere/keys.toml cannot be read: No such file or directory"),
        ("proxy", [], "BANDRANK_PROXY_UPSTREAM must be the address of a search engine, as in http://localhost:9200"),
        ("proxy", ["--proxy-upstream", "http://search:x"], "BANDRANK_PROXY_UPSTREAM cannot be used: Port could not be"),
        ("serve", ["--tls-certificate", "/nowhere.pem"], "BANDRANK_TLS_"),
        ("serve", ["--host", "no.such.host.invalid"], "BANDRANK_HOST 'no.such.host.invalid' is not an address or a"),
        ("serve", ["--host", "search..local"], "BANDRANK_HOST 'search..local' is not an address or a name of one: "),
        (
            "precompute /nowhere.jsonl",
            [],
            "BANDRANK_REDIS_URL must be set: representations have to outlive this process",
        ),
        ("precompute /nowhere.jsonl", ["--redis-url", "redis://localhost"], "/nowhere.jsonl is not a file; give"),
        (
            "proxy",
            ["--proxy-upstream", "https://search", "--proxy-ca", "/nowhere.pem"],
            "BANDRANK_PROXY_CA must be a file of certificates in PEM: /nowhere.pem: No such file",
        ),
        ("proxy", ["--proxy-upstream", "http://search", "--proxy-rules", "/nowhere.toml"], "/nowhere.toml cannot be"),
        ("serve", ["--trusted-proxies", "nonsense"], "BANDRANK_TRUSTED_PROXIES must be addresses or networks, or none"),
        ("serve", ["--port", "x"], "BANDRANK_PORT must be a valid integer"),
        ("serve", ["--device", "gpu"], "BANDRANK_DEVICE must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("serve", ["--device", "meta"], "BANDRANK_DEVICE must be auto, cpu, cuda or cuda:N, got 'meta'"),
        ("serve", ["--device", "cpu", "--kernels", "cuda"], "BANDRANK_KERNELS cannot be cuda: the device is cpu"),
        ("serve", ["--device", "cpu", "--cuda-graphs", "on"], "BANDRANK_CUDA_GRAPHS cannot be on: the device is cpu"),
        (
            "serve",
            ["--shadow-model", "sparse-w4", "--shadow-strategy", "bogus"],
            "BANDRANK_SHADOW_STRATEGY must be one of auto, fast, accurate, cascade, got 'bogus'",
        ),
        ("serve", ["--host", "192.0.2.1"], "BANDRANK_HOST 192.0.2.1 cannot be used: cannot assign requested address"),
    ],
)
def test_a_setting_that_cannot_be_used(
    command: str, flags: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with one line or, if the log is in JSON, with a record."""
    words = [*command.split(), "--model", str(tmp_path), "--port", str(free_port()), *flags]
    assert main(words) == main([*words, "--log-format", "json"]) == 2
    line, record = capsys.readouterr().err.splitlines()

    assert re.fullmatch(f"bandrank: {told}.*", line)
    assert json.loads(record)["message"] == line.removeprefix("bandrank: ")


@pytest.mark.parametrize("command", ["serve", "proxy --proxy-upstream http://search", "check", "precompute CORPUS"])
def test_an_address_of_redis_that_cannot_be_used(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command refuses the address and lists the forms that it may have."""
    (tmp_path / "corpus.jsonl").touch()
    words = command.replace("CORPUS", str(tmp_path / "corpus.jsonl")).split()
    assert main([*words, "--model", str(tmp_path), "--port", str(free_port()), "--redis-url", "foo://x"]) == 2

    said = "bandrank: BANDRANK_REDIS_URL cannot be used: unknown scheme. Redis is at one of"
    assert capsys.readouterr().err.startswith(said)


def test_rules_with_a_misspelt_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nindex = "docs"\nfeilds = ["title"]\nfields = ["title"]\n', encoding="utf-8")
    asked = ["proxy", "--proxy-upstream", "http://search", "--proxy-rules", str(rules)]
    assert main([*asked, "--model", str(tmp_path), "--port", str(free_port())]) == 2

    assert capsys.readouterr().err == f"bandrank: {rules}: rules[0].feilds is not a setting; check its spelling\n"


def test_a_port_in_use() -> None:
    """A port on which another service listens is refused; one whose last connection has only just closed is not."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadSetting, match=r"of 127\.0\.0\.1 cannot be used: address already in use"):
            preflight(Settings(port=port), proxy=False)
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = other.accept()
        accepted.close()  # closed first, so that this side is left in TIME_WAIT
        client.close()

    preflight(Settings(port=port), proxy=False)


def test_each_address_of_a_host_is_checked() -> None:
    """An empty host stands for all addresses, of which `::` is without IPv4."""
    with socket.create_server(("0.0.0.0", 0)) as other:  # noqa: S104  # nothing is served
        preflight(Settings(host="::", port=other.getsockname()[1]), proxy=False)
    with socket.create_server(("::", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadSetting, match=f"{port} of :: cannot be used: address already in use"):
            preflight(Settings(host="", port=port), proxy=False)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, ""),
        ({"host": "localhost"}, ""),
        ({"host": "0.0.0.0"}, "0.0.0.0"),  # noqa: S104  # nothing is served
        ({"host": ""}, "0.0.0.0 or ::"),
    ],
)
def test_a_port_that_is_open_to_all_is_warned_of(
    settings: dict[str, Any], warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is for a service without keys that other machines can reach."""
    with caplog.at_level(logging.WARNING, logger="bandrank"):
        preflight(Settings(port=free_port(), **settings), proxy=False)

    assert caplog.messages == ([NO_KEYS.format(warned)] if warned else [])
