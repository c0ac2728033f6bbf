"""Attacks on the real search proxy with its default settings: a second client notices none of them.

`make chaos` runs all, and holds a clock to the other client's answers; `make test` runs the quick ones without.
"""

from collections.abc import Iterator

import pytest
from chaos.attacking import attack_and_check
from chaos.proxied import PROXY_ATTACKS, hostile_engine
from support.server import RunningService, running_service
from support.soak_pool import tiny_cross_encoder


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
    attack_and_check(proxy, PROXY_ATTACKS[name], timed=False, of="proxy")


@pytest.mark.chaos
@pytest.mark.parametrize("name", PROXY_ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, proxy: RunningService) -> None:
    """The second client's searches have a p99 below a second as well, and its probes are answered within a tenth."""
    attack_and_check(proxy, PROXY_ATTACKS[name], timed=True, of="proxy")
