"""Attacks on the real search proxy with its default settings must not affect a second client.

`make chaos` runs all, and limits how long the second client waits; `make test` runs only the quick ones, untimed.
"""

from collections.abc import Iterator

import pytest
from chaos.attacking import attack_and_check
from chaos.proxied import PROXY_ATTACKS, hostile_engine
from support.server import running_service
from support.soak_pool import tiny_cross_encoder
from support.witness import Witness, witness_of


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """The second client of a proxy with a tiny model, in front of an engine that answers what the attacks ask for."""
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
        ) as proxy,
        witness_of(proxy, asking="proxy") as witness,
    ):
        yield witness


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, attack in PROXY_ATTACKS.items() if attack.quick])
def test_a_quick_attack_spoils_nothing(name: str, witness: Witness) -> None:
    """Searches are answered, the second client's are re-ranked, and memory is bounded."""
    attack_and_check(witness, PROXY_ATTACKS[name], timed=False)


@pytest.mark.chaos
@pytest.mark.parametrize("name", PROXY_ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, witness: Witness) -> None:
    """In addition, the second client's p99 is below a second, and each probe is answered within 0.1 s."""
    attack_and_check(witness, PROXY_ATTACKS[name], timed=True)
