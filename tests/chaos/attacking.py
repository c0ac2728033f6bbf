"""Attacks a running service or proxy, and checks what a second client notices."""

from chaos.table import Attack
from support.witness import Testimony, Witness

MOST_MEMORY = 3 * 2**29
MOST_P99_S, MOST_PROBE_S = 1.0, 0.1
REPETITIONS = 2


def attack_and_check(witness: Witness, attack: Attack, *, timed: bool) -> None:
    """Attacks the service of a second client, and checks what that client saw. timed: also how long it waited.

    Other processes share the machine, and the attackers its two cores. After a client has waited too long, the attack
    is repeated twice, and the client must not wait too long in either repetition.
    """
    first = _attacked(witness, attack)
    if timed and _waited(first):
        again = [_attacked(witness, attack) for _ in range(REPETITIONS)]
        assert not any(map(_waited, again)), [first, *again]


def _attacked(witness: Witness, attack: Attack) -> Testimony:
    with witness.watching() as testimony:
        statuses = attack.from_elsewhere(witness.service.url)

    assert testimony.wrong == [], testimony.wrong[:3]
    assert statuses <= attack.allowed
    assert testimony.most_memory < MOST_MEMORY
    assert witness.service.process.poll() is None
    return testimony


def _waited(testimony: Testimony) -> bool:
    return testimony.p99_s >= MOST_P99_S or max(testimony.probes_s) >= MOST_PROBE_S
