"""Network addresses, as those of clients."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine's loopback device; False for what is no address."""
    address = _parsed(host)
    return address is not None and address.is_loopback


@lru_cache(maxsize=1024)  # asked for each connection and each request
def network_of(host: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 that an IPv6 address is in, as a subscriber has them all.

    "unknown" for what is no address, whatever it says, so that it cannot be made up.
    """
    match _parsed(host):
        case IPv4Address() as address:
            return str(address)
        case IPv6Address() as address:
            return f"{IPv6Address(int(address) >> 64 << 64)}/64"
        case _:
            return "unknown"


def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    """An address; of one that is IPv4-mapped, as in ::ffff:192.0.2.1, the IPv4 address."""
    try:
        address = ip_address(host.partition("%")[0])  # without the interface of a link-local address
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
