"""Where Redis is and how to get in, read from one URL."""

from collections.abc import Callable
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
PORT = 6379
SENTINEL_PORT = 26379


@dataclass(frozen=True)
class RedisAddress:
    """A parsed URL. Its string is safe to log: it has no credentials.

    hosts: names and ports; a cluster's or the Sentinels' may be several.  path: of a unix socket.  master: the name by
    which Sentinels know it.  tls: the ssl_* arguments of a TLS connection, None for a plain one.
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
    """Reads a URL of one of the FORMS.

    With rediss there are the options ssl_ca_certs, ssl_certfile, ssl_keyfile (files), ssl_cert_reqs (none, optional,
    required) and ssl_check_hostname (true, false). Sentinels have credentials of their own, the options
    sentinel_username and sentinel_password. A cluster's hosts are asked for its nodes whenever these change: name
    several, or one that stands for all.
    password_file is read once, now, and comes before a password in the URL.
    Raises ValueError that lists the forms and repeats nothing of the URL that may be a part of a password.
    """
    try:
        return _parse(urlsplit(url))
    except _Unusable as error:
        problem = str(error)
    except ValueError:  # of urllib, whose message may repeat a part of the URL
        problem = "it cannot be read as a URL"
    raise ValueError(f"{problem}. {FORMS}")


class _Unusable(ValueError):
    """A message of ours, that repeats nothing secret."""


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
    sentinel = {name: str(options.pop(name)) for name in ("sentinel_username", "sentinel_password") if name in options}
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
    """(the master's name or "", the number of the database)."""
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
    known: dict[str, Callable[[str], str | bool]] = {"password_file": _password}
    if kind in {"server", "socket"}:
        known["db"] = str
    if kind == "sentinel":
        known |= {"sentinel_username": str, "sentinel_password": str}
    if secure:
        known |= {"ssl_ca_certs": _file, "ssl_certfile": _file, "ssl_keyfile": _file}
        known |= {"ssl_cert_reqs": _cert_reqs, "ssl_check_hostname": _flag}
    options: dict[str, str | bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise _Unusable(f"unknown option; here there are {', '.join(known)}")
        options[name] = known[name](value)
    return options


def _file(path: str) -> str:
    if not Path(path).is_file():
        raise _Unusable(f"no file {path}")
    return path


def _password(path: str) -> str:
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _Unusable(f"{path} cannot be read: {error.strerror}") from error
    if not password:
        raise _Unusable(f"{path} is empty")
    return password


def _cert_reqs(text: str) -> str:
    if text not in {"none", "optional", "required"}:
        raise _Unusable("ssl_cert_reqs must be none, optional or required")
    return text


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise _Unusable("ssl_check_hostname must be true or false")
    return text == "true"
