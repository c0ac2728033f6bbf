"""Clients share a limited resource: each holds a part, and something is left for one more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandrank.engine.clients import Client, Shares


@given(
    events=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 50), st.booleans()), max_size=60),
    shares=st.lists(st.floats(0.05, 0.95), min_size=4, max_size=4),
)
def test_nobody_can_hold_all_of_a_resource(events: list[tuple[str, int, bool]], shares: list[float]) -> None:
    """Whoever holds how much, something is left, and a client that holds nothing may take half of that."""
    clients = {name: Client(name, share) for name, share in zip("abcd", shares, strict=True)}
    held: dict[str, list[int]] = {name: [] for name in clients}
    resource = Shares(100)
    for name, amount, release in events:
        if release and held[name]:
            resource.release(clients[name], held[name].pop())
        elif resource.fits(clients[name], amount):
            resource.hold(clients[name], amount)
            held[name].append(amount)
        newcomer = Client("newcomer")
        assert resource.held == sum(map(sum, held.values())) < 100
        assert resource.fits(newcomer, (100 - resource.held) / 2)
        assert sum(held[name]) <= resource.most(clients[name]) + 1e-9


def test_what_is_released_in_parts_is_held_until_then() -> None:
    resource, client = Shares(100), Client("client")
    held = []
    for amount in (20, 10, -20, -10):
        resource.hold(client, amount) if amount > 0 else resource.release(client, -amount)
        held.append((resource.held, resource.held_by(client)))

    assert held == [(20, 20), (30, 30), (10, 10), (0, 0)]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share must be above 0 and below 1"):
        Client("client", share)
