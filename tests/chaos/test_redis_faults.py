"""Eight faults of Redis under load: no request is lost, no score is wrong, and Redis is used again afterwards."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.load import load
from support.models import save_bi_encoder
from support.proxy import Proxy, proxy_to
from support.redis_server import RedisServer, redis_server
from support.server import RunningService, running_service
from support.soak_pool import Pool
from support.tasks import wait_until

FAULT_S = 3.0
RECOVERY_S = 60.0  # the circuit breaker asks again after half a minute at the latest
PASSWORD = "another"  # noqa: S105  # of a server that lives for seconds


@dataclass(frozen=True)
class Troubled:
    """A Redis server, and the relay through which the service reaches it."""

    server: RedisServer
    proxy: Proxy

    def keep_doing(self, change: Callable[[], object]) -> None:
        """Repeats a change for as long as a fault lasts."""
        ends = time.monotonic() + FAULT_S
        while time.monotonic() < ends:
            change()
            time.sleep(0.02)


Fault = Callable[[Troubled], None]


def killed(there: Troubled) -> None:
    """Redis crashes, and starts again empty."""
    there.server.kill()
    time.sleep(FAULT_S)
    there.server.start()


def frozen(there: Troubled) -> None:
    """Connections stay open, and nothing is answered."""
    there.server.freeze()
    time.sleep(FAULT_S)
    there.server.thaw()


def flushed(there: Troubled) -> None:
    """Everything is deleted, fifty times a second."""
    there.keep_doing(lambda: there.server.do("FLUSHALL"))


def full(there: Troubled) -> None:
    """Redis stores nothing more."""
    there.server.do("CONFIG", "SET", "maxmemory", 1)
    time.sleep(FAULT_S)
    there.server.do("CONFIG", "SET", "maxmemory", 0)


def garbled(there: Troubled) -> None:
    """Bytes at random places of every value are overwritten."""
    rng = random.Random(0)

    def garble() -> None:
        for key in there.server.do("KEYS", "*"):
            there.server.do("SETRANGE", key, rng.randrange(60), rng.randbytes(8))

    there.keep_doing(garble)
    there.server.do("FLUSHALL")


def slow(there: Troubled) -> None:
    """Every reply comes after the service has given up."""
    there.proxy.delay_s = 0.3
    time.sleep(FAULT_S)
    there.proxy.calm()


def closed_to_us(there: Troubled) -> None:
    """Redis restarts with a password that the service does not know."""
    there.server.kill()
    there.server.start()
    there.server.do("CONFIG", "SET", "requirepass", PASSWORD)
    time.sleep(FAULT_S)
    there.server.do("CONFIG", "SET", "requirepass", "", password=PASSWORD)


def cut_off(there: Troubled) -> None:
    """Three in ten replies break off in the middle, and their connections are reset."""
    there.proxy.cut = 0.3
    time.sleep(FAULT_S)
    there.proxy.calm()


FAULTS: list[Fault] = [killed, frozen, flushed, full, garbled, slow, closed_to_us, cut_off]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_bi_encoder(tmp_path_factory.mktemp("faults") / "model"))


@pytest.fixture(scope="module")
def pool(model: str) -> Pool:
    return Pool.scored_by(model)


@contextmanager
def troubled_service(folder: Path, model: str) -> Iterator[tuple[RunningService, Troubled]]:
    """A service that keeps nothing in memory, so that every text is looked up in a Redis behind a relay."""
    with ExitStack() as at_end:
        server = at_end.enter_context(redis_server(folder / "redis"))
        proxy = at_end.enter_context(proxy_to(server.port))
        arguments = ["--model", model, "--device", "cpu", "--redis-url", proxy.url, "--cache-memory-bytes", "0"]
        yield at_end.enter_context(running_service(folder, arguments=arguments)), Troubled(server, proxy)


@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_redis_loses_no_request(fault: Fault, model: str, pool: Pool, tmp_path: Path) -> None:
    """Before, during and after the fault, each request is answered right or refused, and Redis is used again."""
    with troubled_service(tmp_path, model) as (service, there), load(service.url, pool) as account:
        wait_until(lambda: hits(service) > 100)
        before = account.right
        fault(there)
        meanwhile = account.right - before
        known = hits(service)
        wait_until(lambda: hits(service) > known + 100, within_s=RECOVERY_S)
        assert service.scrape().value("bandrank_redis_breaker_state") == 0

    assert account.lost == []
    assert account.unread == 0
    assert meanwhile + account.refused > 0
    assert "Traceback" not in service.log.read_text()


def hits(service: RunningService) -> float:
    """How many representations the service has found in Redis."""
    return service.scrape().value("bandrank_cache_lookups_total", tier="redis", outcome="hit")
