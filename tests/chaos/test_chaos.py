"""Attacks on the real service with its default settings must not affect a second client.

`make chaos` runs all, and limits how long the second client waits; `make test` runs only the quick ones, untimed.
"""

from collections.abc import Iterator

import pytest
from chaos import attacks, bodies, doors, framing, ids, timing
from chaos.attacking import attack_and_check
from chaos.table import ATTACKS, VECTORS
from support.models import save_bi_encoder
from support.server import running_service
from support.soak_pool import tiny_cross_encoder
from support.witness import Witness, witness_of

__all__ = ["attacks", "bodies", "doors", "framing", "ids", "timing"]  # importing them fills ATTACKS


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """The second client of a service whose cross-encoder and bi-encoder are so tiny that they are not the load."""
    folder = tmp_path_factory.mktemp("chaos")
    tiny_cross_encoder(folder / "models" / "pairs")
    save_bi_encoder(folder / "models" / VECTORS)
    arguments = ["--models", str(folder / "models")]
    with running_service(folder, arguments=arguments) as service, witness_of(service) as witness:
        yield witness


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.quick])
def test_a_quick_attack_spoils_nothing(name: str, witness: Witness) -> None:
    """The attack gets only allowed statuses, the second client right answers, and memory is bounded."""
    attack_and_check(witness, ATTACKS[name], timed=False)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, witness: Witness) -> None:
    """In addition, the second client's p99 is below a second, and each probe is answered within 0.1 s."""
    attack_and_check(witness, ATTACKS[name], timed=True)
