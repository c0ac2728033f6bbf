"""What can be known to be wrong with settings before models are loaded and timed, which takes a while."""

import logging
import socket
from ipaddress import ip_address
from pathlib import Path

from bandrank.api.keys import read_keys
from bandrank.api.tls import tls_context
from bandrank.errors import BadSetting
from bandrank.proxy.upstream import Address
from bandrank.settings import Settings, variable

log = logging.getLogger("bandrank")


def preflight(settings: Settings, *, proxy: bool) -> None:
    """Raises BadSetting for keys, a search engine's address, a certificate or a port that cannot be used.

    Logs a warning if others reach the port, and need no key.
    """
    if settings.keys:
        read_keys(Path(settings.keys))
    if proxy:
        Address.of(settings)
    tls_context(settings)
    address = _listen_briefly(settings.host, settings.port)
    if not settings.keys and not ip_address(address.partition("%")[0]).is_loopback:
        log.warning("there are no keys (%s): whoever reaches %s may rank", variable("keys"), settings.host)


def preflight_corpus(path: Path, settings: Settings) -> None:
    """The same for `bandrank precompute`. Raises BadSetting for a file that is none, and without Redis's address."""
    if not settings.redis_url:
        raise BadSetting("redis_url", "must be set: representations have to outlive this process")
    if not path.is_file():
        raise BadSetting(str(path), "is no file; give the path of a JSON-lines file")


def _listen_briefly(host: str, port: int) -> str:
    """The address of a host, once a socket was bound to it. Raises BadSetting."""
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadSetting("port", f"{port} of {host} cannot be used: {reason}") from None
    return str(address[0])
