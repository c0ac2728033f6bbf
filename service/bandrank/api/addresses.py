"""Network addresses, and the client to which a connection is attributed by its address."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from bandrank.engine.clients import Client


def is_loopback(host: str) -> bool:
    """Whether this is a loopback address; False for what is not an address."""
    address = _parsed(host)
    return address is not None and address.is_loopback


def client_at(peer: object) -> Client:
    """The client of a connection, by its peer's address; Unix sockets and peers without an address count as one."""
    return Client(f"address:{network_of(peer[0] if isinstance(peer, tuple) else '')}")


@lru_cache(maxsize=1024)  # asked for each connection and each request
def network_of(host: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 of an IPv6 address, all of which one subscriber has.

    "unknown" for anything that is not an address, so that nobody can make up names.
    """
    match _parsed(host):
        case IPv4Address() as address:
            return str(address)
        case IPv6Address() as address:
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
        case _:
            return "unknown"


def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    """Parses an address; an IPv4-mapped one, as in ::ffff:192.0.2.1, gives the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])  # without the interface of a link-local address
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
