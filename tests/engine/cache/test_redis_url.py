"""URLs of Redis: every form is read, and the error for a bad one repeats no secret."""
# ruff: noqa: S106  # no password here opens anything

from pathlib import Path

import pytest

from bandrank.engine.cache.redis_url import RedisAddress, parse_redis_url

GOOD = {
    "redis://cache": RedisAddress("server", (("cache", 6379),)),
    "redis://cache:7000/2": RedisAddress("server", (("cache", 7000),), db=2),
    "redis://cache?db=3": RedisAddress("server", (("cache", 6379),), db=3),
    "redis://:p%40ss@cache": RedisAddress("server", (("cache", 6379),), password="p@ss"),
    "redis://:pa[ss@cache": RedisAddress("server", (("cache", 6379),), password="pa[ss"),
    "redis://me:pass@[::1]:7000": RedisAddress("server", (("::1", 7000),), username="me", password="pass"),
    "rediss://cache": RedisAddress("server", (("cache", 6379),), tls={}),
    "rediss://cache?ssl_cert_reqs=none&ssl_check_hostname=false": RedisAddress(
        "server", (("cache", 6379),), tls={"ssl_cert_reqs": "none", "ssl_check_hostname": False}
    ),
    "unix:///run/redis.sock": RedisAddress("socket", path="/run/redis.sock"),
    "unix://me:pass@/run/my%20redis.sock?db=1": RedisAddress(
        "socket", path="/run/my redis.sock", db=1, username="me", password="pass"
    ),
    "redis+cluster://a": RedisAddress("cluster", (("a", 6379),)),
    "rediss+cluster://:pass@a:1,b,[::1]:2": RedisAddress(
        "cluster", (("a", 1), ("b", 6379), ("::1", 2)), password="pass", tls={}
    ),
    "redis+sentinel://a,b:7/ours": RedisAddress("sentinel", (("a", 26379), ("b", 7)), master="ours"),
    "redis+sentinel://u:p@a/my%20own/4?sentinel_username=s&sentinel_password=%3Fq": RedisAddress(
        "sentinel",
        (("a", 26379),),
        master="my own",
        db=4,
        username="u",
        password="p",
        sentinel_username="s",
        sentinel_password="?q",
    ),
}

BAD = {
    "": "unknown scheme",
    "cache:6379": "unknown scheme",
    "http://secret@cache": "unknown scheme",
    "redis+tls://cache": "unknown scheme",
    "redis://": "a host is missing",
    "redis://:secret@:6379": "a host is missing",
    "redis+cluster://a,,b": "a host is missing",
    "redis://cache:secret": "cannot be read",
    "redis://:sec/ret@cache": "a host is missing",
    "redis://:secret@[cache": "cannot be read",
    "redis://cache/secret": "the database must be a number",
    "redis://cache/1/2": "too many parts",
    "redis://cache?secret=1": "unknown option",
    "redis://cache?ssl_cert_reqs=none": "unknown option",
    "rediss://cache?ssl_cert_reqs=secret": "none, optional, required",
    "rediss://cache?ssl_check_hostname=secret": "one of true, false",
    "rediss://cache?ssl_ca_certs=/nowhere/ca.pem": "no file /nowhere/ca.pem",
    "redis://me@cache?password_file=/nowhere/password": "/nowhere/password cannot be read: No such file",
    "redis://me@cache?password_file=/dev/null": "/dev/null is empty",
    "unix://": "the path of the socket is missing",
    "redis+cluster://a/1": "no database but 0",
    "redis+sentinel://a": "the name of the Sentinels' master is missing",
    "redis+sentinel://a/ours/1/secret": "too many parts",
}


@pytest.mark.parametrize("url", GOOD)
def test_every_form_is_read(url: str) -> None:
    assert parse_redis_url(url) == GOOD[url]


@pytest.mark.parametrize("url", GOOD)
def test_what_is_logged_has_no_credentials(url: str) -> None:
    """The address as it is logged is still a URL that can be read."""
    address = parse_redis_url(url)

    for text in (str(address), repr(address)):
        assert "pass" not in text.replace("password", "")
        assert "?q" not in text
    if address.kind != "sentinel":
        assert parse_redis_url(str(address)).hosts == address.hosts


@pytest.mark.parametrize(("url", "problem"), BAD.items())
def test_a_bad_url_is_refused(url: str, problem: str) -> None:
    """The message lists the valid forms and repeats nothing that could be part of a password."""
    with pytest.raises(ValueError, match=problem) as raised:
        parse_redis_url(url)

    message = str(raised.value)
    for scheme in ("redis://", "unix://", "redis+cluster://", "redis+sentinel://", "rediss"):
        assert scheme in message
    assert "secret" not in message
    assert "sec" not in message.replace("ssl_cert_reqs", "")
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_files_of_a_tls_connection(tmp_path: Path) -> None:
    """A file that exists is accepted; the table BAD has a URL whose file is missing."""
    file = tmp_path / "ca.pem"
    file.touch()

    assert parse_redis_url(f"rediss://cache?ssl_ca_certs={file}").tls == {"ssl_ca_certs": str(file)}


def test_the_password_may_be_in_a_file(tmp_path: Path) -> None:
    """With a file, neither the URL nor the logged address has the password; a newline at the file's end is ignored."""
    file = tmp_path / "password"
    file.write_text("p ss/word\n", encoding="utf-8")

    for url in ("redis://me@cache", "rediss://me:other@cache", "redis+cluster://me@a,b", "redis+sentinel://me@a/ours"):
        address = parse_redis_url(f"{url}?password_file={file}")

        assert (address.username, address.password) == ("me", "p ss/word")
        assert "word" not in f"{address} {address!r}".replace("password", "")
