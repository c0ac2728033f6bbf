"""Tests the script that checks a running stack, with a real service and a real Prometheus."""

import subprocess
from pathlib import Path

import pytest
import yaml
from support.deploy import DEPLOY, needs_program
from support.prometheus import prometheus
from support.server import RunningService, running_service

pytestmark = pytest.mark.slow


def smoke(service: RunningService, prometheus_url: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with a proxy that does not answer, through which it must not ask for what is on this machine."""
    environment = {"PATH": "/usr/bin:/bin", "http_proxy": "http://127.0.0.1:9", "WAIT_S": "30", "OPENSEARCH_URL": ""}
    environment |= {"BASE_URL": service.url, "PROMETHEUS_URL": prometheus_url, **more}
    needs_program("curl", "Debian: curl")
    command = ["bash", DEPLOY / "smoke.sh"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_stack_that_is_well(tmp_path: Path) -> None:
    """The script says what is well and what it did not check; it fails where a Prometheus scrapes nothing."""
    with running_service(tmp_path, arguments=["--device", "cpu"]) as service:
        scraped = [{"job_name": "bandrank", "static_configs": [{"targets": [service.url.removeprefix("http://")]}]}]
        for name, jobs in (("watched", scraped), ("blind", [])):
            settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
            (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        with prometheus(tmp_path / "watched.yml", tmp_path / "watched") as url:
            ended = smoke(service, url)
        with prometheus(tmp_path / "blind.yml", tmp_path / "blind") as url:
            blind = smoke(service, url, WAIT_S="1")
        unwatched = smoke(service, "")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [line.split(":")[0] for line in ended.stdout.splitlines()] == ["ok"] * 3 + ["not checked", "ok"]
    assert blind.returncode == 1
    assert "has scraped bandrank_requests_total > 0: not within 1 s" in blind.stderr
    assert unwatched.returncode == 0
    assert unwatched.stdout.endswith("not checked: Prometheus, because PROMETHEUS_URL is empty\n")
