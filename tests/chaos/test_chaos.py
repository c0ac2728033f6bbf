"""Attacks on the real service with its default settings: a second client notices none of them.

`make chaos` runs all. While each runs, the other client's small requests are answered right
with a p99 below a second, probes within a tenth, and the service's memory stays below 1.5 GiB.
"""

from collections.abc import Iterator

import pytest
from chaos import attacks, bodies
from chaos.table import ATTACKS
from support.server import RunningService, running_service
from support.soak_pool import tiny_cross_encoder
from support.witness import resident_bytes, witness

__all__ = ["attacks", "bodies"]  # which fill the table

MOST_MEMORY = 3 * 2**29
MOST_P99_S, MOST_PROBE_S = 1.0, 0.1

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service of a tiny cross-encoder, so that the load falls on the service and not on the model."""
    folder = tmp_path_factory.mktemp("chaos")
    with running_service(folder, arguments=["--model", str(tiny_cross_encoder(folder / "model"))]) as running:
        yield running


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_noticed_by_nobody_else(name: str, service: RunningService) -> None:
    """It gets one of the answers that it may get, and the second client all of its own."""
    attack, allowed = ATTACKS[name]
    with witness(service) as testimony:
        statuses = attack(service.url)

    assert testimony.wrong == []
    assert statuses <= allowed
    assert testimony.p99_s < MOST_P99_S
    assert max(testimony.probes_s) < MOST_PROBE_S
    assert testimony.most_memory < MOST_MEMORY
    assert service.process.poll() is None
    assert resident_bytes(service) > 0
