"""How uvicorn is hardened: the proxies that it trusts, and the headers of every answer."""

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from bandrank.errors import BadSetting
from bandrank.settings import Settings

# Only one answer is a page. No other may be taken for one, load anything, be shown in a frame or be cached.
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
# The page at / may load its own files and call this service, and no text can become a script in it.
PAGE_PATH = "/"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
OVER_TLS = {"Strict-Transport-Security": "max-age=31536000"}


def hardening(settings: Settings) -> dict[str, Any]:
    """Arguments of uvicorn.Config. Raises BadSetting for trusted proxies that are not addresses."""
    proxies = _addresses(settings.trusted_proxies)
    return {
        "headers": [*(HEADERS | (OVER_TLS if settings.tls_certificate else {})).items()],
        "server_header": False,
        "proxy_headers": bool(proxies),
        "forwarded_allow_ips": proxies,
        "ws": "none",  # there are no WebSockets, and nothing would bound a connection that became one
    }


def headers_of_page(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of other answers, with the policy of the page."""
    policy = b"content-security-policy"
    return [(name, PAGE_POLICY.encode() if name.lower() == policy else value) for name, value in headers]


def _addresses(proxies: str) -> list[str]:
    """The addresses and networks in a list; none in "none". Raises BadSetting for names, which uvicorn would take."""
    addresses = [] if proxies == "none" else [part.strip() for part in proxies.split(",") if part.strip()]
    for address in addresses:
        try:
            ip_network(address)
        except ValueError as error:
            raise BadSetting("trusted_proxies", f"must be addresses or networks, or none: {error}") from None
    return addresses
