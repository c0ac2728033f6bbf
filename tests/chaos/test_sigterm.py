"""SIGTERM at any moment: every request that was read is answered, and the process ends cleanly.

`make chaos` draws fifty moments: during the start, under clients that keep connecting; right after the service is
announced; under load; and under load with a second SIGTERM during the stop; with and without Redis. `make test` runs
the first of each kind.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from support.load import load
from support.models import save_bi_encoder
from support.redis_server import redis_server
from support.server import running_service
from support.soak_pool import Pool, tiny_cross_encoder
from support.tasks import wait_until

Kind = Literal["start", "announced", "load", "twice"]
KINDS: tuple[Kind, ...] = ("start", "announced", "load", "twice", "load")
LATEST_S = {"start": 4.0, "announced": 0.5, "load": 1.0, "twice": 1.0}  # a start takes about four seconds
STARTING = "bandrank: starting"
STOP_S = 20.0  # the longest that a stop may take, with or without a second signal


@dataclass(frozen=True)
class Moment:
    """kind: during the start, right after the announcement, under load, or twice: under load and again during the stop.

    after_s: since the start, the announcement or readiness.  again_s: from the first signal to the second.
    """

    kind: Kind
    with_redis: bool
    after_s: float
    again_s: float

    def __str__(self) -> str:
        return f"{self.kind}-{'redis' if self.with_redis else 'alone'}-{self.after_s:.2f}"


def moments(count: int) -> Iterator[Moment]:
    """Draws moments, always the same ones; every second one uses Redis."""
    rng = random.Random(1)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        yield Moment(kind, number % 2 == 1, rng.uniform(0.0, LATEST_S[kind]), rng.uniform(0.0, 0.3))


MOMENTS = [
    pytest.param(moment, id=str(moment), marks=pytest.mark.chaos if number >= len(KINDS) else ())
    for number, moment in enumerate(moments(50))
]


@dataclass(frozen=True)
class Served:
    """A model and the scores that it must give."""

    model: str
    pool: Pool


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A cross-encoder, which needs no Redis."""
    model = str(tiny_cross_encoder(tmp_path_factory.mktemp("alone") / "model"))
    return Served(model, Pool.scored_by(model))


@pytest.fixture(scope="module")
def with_redis(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A bi-encoder, whose representations are kept in Redis."""
    model = str(save_bi_encoder(tmp_path_factory.mktemp("with_redis") / "model"))
    return Served(model, Pool.scored_by(model))


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_any_moment_loses_no_request(
    moment: Moment, alone: Served, with_redis: Served, tmp_path: Path
) -> None:
    """A request is answered right, refused or never read; once the service is announced, the exit status is 0."""
    served = with_redis if moment.with_redis else alone
    with redis_server(tmp_path / "redis") as redis:
        more = ["--redis-url", redis.url, "--cache-memory-bytes", "0"] if moment.with_redis else []
        starting = running_service(
            tmp_path, arguments=["--model", served.model, "--device", "cpu", *more], start_timeout_s=None
        )
        with starting as service, load(service.url, served.pool) as account:
            if moment.kind == "announced":
                wait_until(lambda: STARTING in service.log.read_text())
            elif moment.kind != "start":
                service.wait_until_ready()
            time.sleep(moment.after_s)
            announced = STARTING in service.log.read_text()
            service.terminate()
            if moment.kind == "twice":
                time.sleep(moment.again_s)
                service.terminate()
            status = service.exit_status(STOP_S)

    log = service.log.read_text()
    assert account.lost == [], log
    assert status == 0 if announced else status in {0, -15}, log
    assert account.right > 0 or moment.kind in {"start", "announced"}
    assert "Traceback" not in log or not announced


@pytest.mark.chaos
def test_a_service_that_is_killed_does_lose_requests(alone: Served, tmp_path: Path) -> None:
    """This shows that the clients would notice a request lost by SIGTERM."""
    starting = running_service(tmp_path, arguments=["--model", alone.model, "--device", "cpu"], start_timeout_s=None)
    with starting as service, load(service.url, alone.pool) as account:
        service.wait_until_ready()
        wait_until(lambda: account.right > 20)
        service.process.kill()
        service.exit_status()

    assert account.lost != []
