"""The address of Redis and the credentials for it, read from one URL."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind = Literal["server", "socket", "cluster", "sentinel"]

FORMS = """Redis is at one of
  redis://[[user]:password@]host[:6379][/db]
  unix://[[user]:password@]/path/to/redis.sock[?db=0]
  redis+cluster://[[user]:password@]host[:6379][,host...]
  redis+sentinel://[[user]:password@]host[:26379][,host...]/master-name[/db][?sentinel_password=...]
with rediss for redis if TLS is spoken, and special characters of a user or password percent-encoded; or with the
password in a file: ?password_file=PATH."""

SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
# RFC 3986, appendix B. Python's urlsplit takes one host, and from 3.14 on no IPv6 address behind another.
URL = re.compile(r"([^:/?#]+)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
PORT = 6379
SENTINEL_PORT = 26379
SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS_CHOICES = {"ssl_cert_reqs": ("none", "optional", "required"), "ssl_check_hostname": ("true", "false")}


@dataclass(frozen=True)
class RedisAddress:
    """A parsed URL. Its string is safe to log: it has no credentials.

    hosts: names and ports, several for a cluster or for Sentinels.  path: the path of a unix socket.
    master: the name by which Sentinels know the server.  tls: the ssl_* arguments of a TLS connection, None for a
    plain one.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    master: str = ""
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls: dict[str, str | bool] | None = None

    def __str__(self) -> str:
        if self.kind == "socket":
            return f"unix://{self.path}?db={self.db}"
        scheme = ("redis" if self.tls is None else "rediss") + ("" if self.kind == "server" else f"+{self.kind}")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return "/".join([f"{scheme}://{hosts}", *([self.master] if self.master else []), str(self.db)])


def parse_redis_url(url: str) -> RedisAddress:
    """Parses a URL of one of the FORMS.

    With rediss the options are TLS_FILES and TLS_CHOICES. The Sentinels' own credentials are the options
    sentinel_username and sentinel_password. A cluster's hosts are asked for its nodes whenever these change, so name
    several, or one that stands for all.
    The option password_file names a file that is read once, now, and takes precedence over a password in the URL.
    Raises ValueError; its message lists the forms and repeats no part of the URL that may belong to a password.
    """
    try:
        return _parse(_split(url))
    except _Unusable as error:
        problem = str(error)
    except ValueError:  # raised by urllib, whose message may repeat a part of the URL
        problem = "it cannot be read as a URL"
    raise ValueError(f"{problem}. {FORMS}")


class _Unusable(ValueError):
    """The URL cannot be used; the message says why and repeats nothing secret."""


def _split(url: str) -> SplitResult:
    if (parts := URL.fullmatch(url.strip())) is None:
        raise _Unusable("unknown scheme")
    scheme, netloc, path, query = parts.groups(default="")
    return SplitResult(scheme.lower(), netloc, path, query, "")


def _parse(url: SplitResult) -> RedisAddress:
    if url.scheme not in SCHEMES:
        raise _Unusable("unknown scheme")
    kind, secure = SCHEMES[url.scheme]
    credentials, _, netloc = url.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    hosts = () if kind == "socket" else _hosts(netloc, SENTINEL_PORT if kind == "sentinel" else PORT)
    options = _options(url.query, kind=kind, secure=secure)
    master, db = _path(url.path, kind)
    if "db" in options:
        db = _database(str(options.pop("db")))
    sentinel = {name: str(options.pop(name)) for name in SENTINEL_LOGIN if name in options}
    return RedisAddress(
        kind=kind,
        hosts=hosts,
        path=unquote(url.path) if kind == "socket" else "",
        master=master,
        db=db,
        username=unquote(username) or None,
        password=str(options.pop("password_file", unquote(password))) or None,
        tls=options if secure else None,
        **sentinel,
    )


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    parsed = [urlsplit(f"//{host}") for host in text.split(",")]
    if not all(host.hostname for host in parsed):
        raise _Unusable("a host is missing")
    return tuple((str(host.hostname), host.port or default_port) for host in parsed)


def _path(text: str, kind: Kind) -> tuple[str, int]:
    """The master's name, or "", and the number of the database."""
    if kind == "socket":
        if len(text) < 2:
            raise _Unusable("the path of the socket is missing")
        return "", 0
    parts = [unquote(part) for part in text.split("/") if part]
    master = parts.pop(0) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not master:
        raise _Unusable("the name of the Sentinels' master is missing")
    if len(parts) > 1:
        raise _Unusable("the path has too many parts")
    db = _database(parts[0]) if parts else 0
    if kind == "cluster" and db:
        raise _Unusable("a cluster has no database but 0")
    return master, db


def _database(text: str) -> int:
    if not text.isdecimal():
        raise _Unusable("the database must be a number")
    return int(text)


def _options(query: str, *, kind: Kind, secure: bool) -> dict[str, str | bool]:
    """The query's options, checked as far as they can be before anything is connected."""
    known = ("password_file", *{"server": ("db",), "socket": ("db",), "sentinel": SENTINEL_LOGIN, "cluster": ()}[kind])
    if secure:
        known += (*TLS_FILES, *TLS_CHOICES)
    options: dict[str, str | bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise _Unusable(f"unknown option; here there are {', '.join(known)}")
        if name in TLS_FILES and not Path(value).is_file():
            raise _Unusable(f"no file {value}")
        if name in TLS_CHOICES and value not in TLS_CHOICES[name]:
            raise _Unusable(f"{name} must be one of {', '.join(TLS_CHOICES[name])}")
        options[name] = value == "true" if name == "ssl_check_hostname" else value
    if "password_file" in options:
        options["password_file"] = _password(str(options["password_file"]))
    return options


def _password(path: str) -> str:
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _Unusable(f"{path} cannot be read: {error.strerror}") from error
    if not password:
        raise _Unusable(f"{path} is empty")
    return password
