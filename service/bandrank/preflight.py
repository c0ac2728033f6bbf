"""Checks settings before models are loaded and timed, which takes a while."""

import errno
import logging
import socket
from ipaddress import ip_address
from pathlib import Path

from bandrank.api.certificate import served_certificate
from bandrank.api.hardening import hardening
from bandrank.api.keys import read_keys
from bandrank.errors import BadSetting
from bandrank.metrics import Metrics
from bandrank.proxy.rerank_options import read_rules
from bandrank.proxy.upstream import Address, trust
from bandrank.serving import check_shadow_strategy, choose_device, connect_redis
from bandrank.settings import Settings, variable

log = logging.getLogger("bandrank")


def preflight_models(settings: Settings) -> None:
    """Raises BadSetting for a list of models, a device, kernels or graphs on it, a Redis address or a shadow strategy
    that cannot be used, as far as can be told before a model is loaded.
    """
    if settings.shadow_among(settings.served_models()) is not None:
        check_shadow_strategy(settings)
    if (device := choose_device(settings.device)).type == "cpu":
        for name, asked in (("kernels", "cuda"), ("cuda_graphs", "on")):
            if getattr(settings, name) == asked:
                raise BadSetting(name, f"cannot be {asked}: the device is {device}")
    connect_redis(settings, Metrics())


def preflight(settings: Settings, *, proxy: bool) -> None:
    """Raises BadSetting for keys, trusted proxies, a certificate, a host or a port that cannot be used; for a proxy,
    also for the search engine's address, its certificate authorities or the rules.

    Logs a warning if other machines can reach the port without a key.
    """
    if settings.keys:
        read_keys(Path(settings.keys))
    if proxy:
        trust(Address.of(settings), settings.proxy_ca)
        if settings.proxy_rules:
            read_rules(Path(settings.proxy_rules), max_depth=settings.max_candidates)
    hardening(settings)
    served_certificate(settings)
    addresses = _listen_briefly(settings.host, settings.port)
    if not settings.keys and not all(ip_address(each.partition("%")[0]).is_loopback for each in addresses):
        host = settings.host or " or ".join(addresses)
        log.warning("no API keys are set (%s): anyone who can reach %s may rank", variable("keys"), host)


def preflight_corpus(path: Path, settings: Settings) -> None:
    """Raises BadSetting where `bandrank precompute` lacks an address of Redis, or `path` is not a file."""
    if not settings.redis_url:
        raise BadSetting("redis_url", "must be set: representations have to outlive this process")
    if not path.is_file():
        raise BadSetting(str(path), "is not a file; give the path of a JSON-lines file")


def _listen_briefly(host: str, port: int) -> list[str]:
    """Binds a socket to a port of each address of a host for a moment; returns these addresses. Raises BadSetting."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise BadSetting("host", f"{host!r} is not an address or a name of one: {reason}") from None
    addresses = []
    for family, kind, _, _, address in found:
        at = str(address[0])
        try:
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen()
            addresses.append(at)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                continue  # as the server does on a kernel without IPv6
            where = at if host in {"", at} else f"{host} ({at})"
            name, what = ("host", where) if error.errno == errno.EADDRNOTAVAIL else ("port", f"{port} of {where}")
            raise BadSetting(name, f"{what} cannot be used: {(error.strerror or str(error)).lower()}") from None
    return addresses
