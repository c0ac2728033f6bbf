"""Attacks on the real search proxy with its default settings: a second client notices none of them.

`make chaos` runs all, and holds a clock to the other client's answers; `make test` runs the quick ones without.
"""

from collections.abc import Iterator

import pytest
from chaos.proxied import PROXY_ATTACKS, hostile_engine
from support.server import RunningService, running_service
from support.soak_pool import tiny_cross_encoder
from support.witness import witness

MOST_MEMORY = 3 * 2**29
MOST_P99_S, MOST_PROBE_S = 1.0, 0.1


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A proxy with a tiny cross-encoder, before an engine that answers whatever the attacks want."""
    folder = tmp_path_factory.mktemp("chaos")
    model = str(tiny_cross_encoder(folder / "model"))
    with (
        hostile_engine() as engine,
        running_service(
            folder,
            verb="proxy",
            ready="/_bandrank/readyz",
            arguments=["--model", model],
            environment={"BANDRANK_PROXY_UPSTREAM": engine},
        ) as running,
    ):
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, attack in PROXY_ATTACKS.items() if attack.quick])
def test_a_quick_attack_spoils_nothing(name: str, proxy: RunningService) -> None:
    """Searches are answered, those of the second client re-ranked, and memory is bounded."""
    attacked(proxy, name, timed=False)


@pytest.mark.chaos
@pytest.mark.parametrize("name", PROXY_ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, proxy: RunningService) -> None:
    """The second client's searches have a p99 below a second as well, and its probes are answered within a tenth."""
    attacked(proxy, name, timed=True)


def attacked(proxy: RunningService, name: str, *, timed: bool) -> None:
    """Attacks a proxy, and checks what a second client saw meanwhile. timed: its waiting as well."""
    attack = PROXY_ATTACKS[name]
    with witness(proxy, of="proxy") as testimony:
        statuses = attack.from_elsewhere(proxy.url)

    assert testimony.wrong == []
    assert statuses <= attack.allowed
    assert testimony.most_memory < MOST_MEMORY
    assert proxy.process.poll() is None
    if timed:
        assert testimony.p99_s < MOST_P99_S
        assert max(testimony.probes_s) < MOST_PROBE_S
