"""Attacks on the real service with its default settings: a second client notices none of them.

`make chaos` runs all, and holds a clock to the other client's answers; `make test` runs the quick ones without.
"""

from collections.abc import Iterator

import pytest
from chaos import attacks, bodies, doors, framing, ids, promises, timing
from chaos.attacking import attack_and_check
from chaos.table import ATTACKS, VECTORS
from support.models import save_bi_encoder
from support.server import running_service
from support.soak_pool import tiny_cross_encoder
from support.witness import Witness, witness_of

__all__ = ["attacks", "bodies", "doors", "framing", "ids", "promises", "timing"]  # which fill the table


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """The second client of a service of tiny models, so that the load falls on the service and not on them: a
    cross-encoder, and one whose vectors may be asked for.
    """
    folder = tmp_path_factory.mktemp("chaos")
    tiny_cross_encoder(folder / "models" / "pairs")
    save_bi_encoder(folder / "models" / VECTORS)
    arguments = ["--models", str(folder / "models")]
    with running_service(folder, arguments=arguments) as service, witness_of(service) as witness:
        yield witness


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.quick])
def test_a_quick_attack_spoils_nothing(name: str, witness: Witness) -> None:
    """It gets one of the answers that it may get; the second client's answers are right, and memory is bounded."""
    attack_and_check(witness, ATTACKS[name], timed=False)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, witness: Witness) -> None:
    """The second client's requests have a p99 below a second as well, and its probes are answered within a tenth."""
    attack_and_check(witness, ATTACKS[name], timed=True)
