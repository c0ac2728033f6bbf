"""A certificate that is renewed on disk: which connections get it, what half of a pair does, and when it expires."""

import logging
import shutil
import ssl
import subprocess
from itertools import count
from pathlib import Path

import httpx
import pytest
from support.certificates import Certificate, make_certificate
from support.listening import listening
from support.server import Scrape
from support.tasks import wait_until

from bandrank.api.certificate import ServedCertificate, not_after
from bandrank.settings import Settings


def served(made: Certificate) -> ServedCertificate:
    """The certificate as the service watches it, by a clock that moves by a second each time it is read."""
    return ServedCertificate(made.certificate, made.key, count().__next__)


def expiry(made: Certificate) -> float:
    """When the certificate in the file expires, in seconds since the epoch."""
    return not_after(Path(made.certificate).read_bytes())


def renew(made: Certificate, new: Certificate) -> None:
    for target, source in ((made.certificate, new.certificate), (made.key, new.key)):
        shutil.copy(source, target)


def test_a_swapped_link_is_a_renewal(tmp_path: Path) -> None:
    """Where Kubernetes mounts a secret, the files are links through another link, which it swaps."""
    for name, days in (("old", 2), ("new", 9)):
        (tmp_path / name).mkdir()
        make_certificate(tmp_path / name, days=days)
    link, files = tmp_path / "data", [tmp_path / "localhost.pem", tmp_path / "localhost.key"]
    for file in files:
        file.symlink_to(f"data/{file.name}")
    link.symlink_to("old")
    certificate = served(Certificate(*map(str, files)))
    before = certificate.expires
    link.unlink()
    link.symlink_to("new")

    assert certificate.expires > before


def test_what_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With half of a new pair, part of a file or an empty file the old pair stays, and the log says why once."""
    made, new = make_certificate(tmp_path), make_certificate(tmp_path, "new", days=9)
    certificate, before = served(made), expiry(made)
    whole = Path(new.certificate).read_text(encoding="ascii")
    for text in (whole, whole[:300], ""):
        Path(made.certificate).write_text(text, encoding="ascii")
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert [certificate.expires for _ in range(3)] == [before] * 3
        assert len(caplog.records) == 1
    renew(made, new)

    with caplog.at_level(logging.INFO):
        assert certificate.expires == expiry(new)
    assert caplog.messages[-1].startswith("read again: the certificate, which expires on 20")


def test_a_fault_that_leaves_the_files_as_they_are_is_got_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has too many open files to read the pair reads it when it next looks."""
    made, new = make_certificate(tmp_path), make_certificate(tmp_path, "new", days=9)
    certificate = served(made)
    renew(made, new)

    def too_many(_: Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(Path, "read_bytes", too_many)
        before = certificate.expires
    assert before < certificate.expires == expiry(new)


def test_new_connections_get_the_renewed_certificate(tmp_path: Path) -> None:
    """Open connections keep the old certificate, and the metrics have the time at which the new one expires."""
    made, new = make_certificate(tmp_path), make_certificate(tmp_path, "new", days=9)
    settings = Settings(device="cpu", tls_certificate=made.certificate, tls_key=made.key)
    with listening(settings, trust=made.trust) as service, service.client() as before:

        def scraped() -> float:
            return Scrape(before.get("/metrics").text).value("bandrank_tls_certificate_expiry_time_seconds")

        def renewed() -> bool:
            try:
                return httpx.get(f"{service.url}/healthz", verify=new.trust, trust_env=False).is_success
            except httpx.ConnectError:
                return False

        assert scraped() == expiry(made)
        renew(made, new)
        wait_until(renewed)
        assert scraped() == expiry(new)


@pytest.mark.parametrize("days", [2, 20_000])
def test_expiry_is_what_openssl_says(days: int, tmp_path: Path) -> None:
    """A certificate writes years before 2050 with two digits, and later ones with four."""
    made = make_certificate(tmp_path, days=days)
    command = ["openssl", "x509", "-enddate", "-noout", "-in", made.certificate]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert expiry(made) == ssl.cert_time_to_seconds(said.strip().removeprefix("notAfter="))
