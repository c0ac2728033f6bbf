"""Self-signed certificates for localhost, made by openssl."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from support.deploy import needs_program, run


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in files."""

    certificate: str
    key: str

    @property
    def trust(self) -> ssl.SSLContext:
        """A context for clients that trust only this certificate."""
        return ssl.create_default_context(cafile=self.certificate)


def make_certificate(folder: Path, name: str = "localhost", *, days: int = 2) -> Certificate:
    """Makes a certificate, valid for `days`, in a folder; skips the test if there is no openssl."""
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    kind = f"-x509 -noenc -days {days} -subj /CN=localhost -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
    files = ("-keyout", made.key, "-out", made.certificate)
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    run(needs_program("openssl", "Debian: openssl"), "req", *kind.split(), *files, *names)
    return made
