"""The certificate that is served, which is renewed on disk long before the service is restarted."""

import re
import ssl
import time
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from bandrank.api.followed_files import FollowedFiles
from bandrank.errors import BadSetting
from bandrank.settings import Settings

PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END", re.DOTALL)
# The validity in DER: two times in a row, each with 12 digits up to 2049 and with 14 from then on.
VALIDITY = re.compile(rb"(?:\x17\x0d\d{12}|\x18\x0f\d{14})Z(?:\x17\x0d(\d{12})|\x18\x0f(\d{14}))Z")


def served_certificate(settings: Settings) -> "ServedCertificate | None":
    """The certificate to serve with, and its key; None if none is set. Raises BadSetting if they cannot be used."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if not certificate and not key:
        return None
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        if not path:
            raise BadSetting(name, "must be set too: TLS takes a certificate and its key")
    return ServedCertificate(certificate, key)


class ServedCertificate:
    """The TLS context of new connections, from files that may be renewed. Used from the event loop."""

    def __init__(self, certificate: str, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises BadSetting if the files cannot be used."""
        self._certificate, self._key = certificate, key
        kept = "the certificate that was read before stays in use"
        self._files = FollowedFiles([certificate, key], self._read, kept=kept, clock=clock)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next connection; open connections keep theirs."""
        self._files.look()
        return self._context

    @property
    def expires(self) -> float:
        """When the certificate expires, in Unix seconds."""
        self._files.look()
        return self._expires

    def _read(self) -> str:
        _content("tls_key", self._key)  # whose fault `load_cert_chain` would not tell from the certificate's
        pem = _content("tls_certificate", self._certificate)
        # A new context each time, because one that has loaded half of a pair can serve nobody any more.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # clients could make the server repeat the costly part
        context.set_alpn_protocols(["http/1.1"])
        name, fault = "tls_certificate", f"is not a certificate in PEM: {self._certificate}"
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self._certificate)
            expires = not_after(pem)
            name, fault = "tls_key", f"is not the certificate's key, unencrypted: {self._key}"
            context.load_cert_chain(self._certificate, self._key, password="")  # instead of a question at the terminal
        except (ValueError, OSError) as error:  # ssl's are among them
            reason = (getattr(error, "reason", None) or "not PEM").lower().replace("_", " ")
            raise BadSetting(name, f"{fault}: {reason}") from None
        self._context, self._expires = context, expires
        return f"the certificate, which expires on {datetime.fromtimestamp(expires, UTC):%Y-%m-%d}"


def _content(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise BadSetting(name, f"cannot be read: {path}: {error.strerror}") from None


def not_after(pem: bytes) -> float:
    """When PEM's first certificate expires, in Unix seconds (RFC 5280, 4.1.2.5). Raises ValueError if there is none."""
    found = PEM.search(pem)
    times = None if found is None else VALIDITY.search(b64decode(found[1]))
    if times is None:
        raise ValueError("there is no certificate in PEM")
    short, full = times.groups()
    digits = full or (b"19" if short >= b"50" else b"20") + short
    return datetime.strptime(digits.decode("ascii"), "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
