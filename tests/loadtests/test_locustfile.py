"""The requests of simulated users, with a stand-in for locust, which the tests do not install."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


def test_no_two_users_send_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even users of two processes (`locust --processes 2`), which both count from 0: caches would see doubles."""
    locust = SimpleNamespace(FastHttpUser=object, constant_throughput=lambda rate: rate, task=lambda work: work)
    monkeypatch.setitem(sys.modules, "locust", locust)
    file = Path(__file__).parents[2] / "loadtests" / "locustfile.py"
    drawn = []
    for process in range(2):
        user_class = runpy.run_path(str(file))["SearchPage"]
        for _ in range(2):
            user = user_class()
            user.environment = SimpleNamespace(runner=SimpleNamespace(worker_index=process))
            user.on_start()
            drawn.append(user.rng.random())

    assert len(set(drawn)) == 4
