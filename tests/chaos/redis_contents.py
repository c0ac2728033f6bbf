"""What others may have put into Redis under the service's keys, and states and replies of a Redis server, by name."""

import contextlib
import random
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence

import redis
from support.redis_server import RedisServer

Change = Callable[[RedisServer, Sequence[bytes]], object]
REPRESENTATIONS: dict[str, Change] = {}
CANDIDATES: dict[str, Change] = {}
HEAD_BYTES, COUNT_BYTES = 14, 8  # in a stored representation: before the payload, and in the payload before the rows
HUGE = 30_000_000


def each(table: dict[str, Change], name: str, change: Callable[[bytes], bytes]) -> None:
    """Registers a change that is made to every value."""

    def change_all(server: RedisServer, keys: Sequence[bytes]) -> None:
        for key in keys:
            server.do("SET", key, change(server.do("GET", key)))

    table[name] = change_all


def instead(table: dict[str, Change], name: str, *command: object) -> None:
    """Registers a command that replaces every value; the key is inserted as its first argument."""

    def replace_all(server: RedisServer, keys: Sequence[bytes]) -> None:
        for key in keys:
            server.do("DEL", key)
            server.do(command[0], key, *command[1:])

    table[name] = replace_all


def sealed(value: bytes, payload: bytes, key: bytes = b"") -> bytes:
    """A representation with the head of `value`, another payload, and the right checksum."""
    head = value[: HEAD_BYTES - 4]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head, zlib.crc32(key)))) + payload


def resealed(name: str, change: Callable[[bytes], bytes]) -> None:
    """Registers a change of every payload whose checksum is made right again."""

    def reseal_all(server: RedisServer, keys: Sequence[bytes]) -> None:
        for key in keys:
            value = server.do("GET", key)
            covered = key if value[0] > 1 else b""  # version 1 left the key out
            server.do("SET", key, sealed(value, change(value[HEAD_BYTES:]), covered))

    REPRESENTATIONS[name] = reseal_all


for kinds in (REPRESENTATIONS, CANDIDATES):
    instead(kinds, "lists", "RPUSH", b"a", b"b")
    instead(kinds, "hashes", "HSET", b"a", b"b")
    instead(kinds, "sorted sets", "ZADD", 1, b"a")
    instead(kinds, "streams", "XADD", "*", b"a", b"b")
    instead(kinds, "nothing", "SET", b"")
    instead(kinds, "values of megabytes", "SET", b"\xff" * HUGE)
    instead(kinds, "replies of Redis' own protocol", "SET", b"$-1\r\n+OK\r\n*1\r\n")
    instead(kinds, "compressed bytes", "SET", zlib.compress(b"man " * 100))
    each(kinds, "cut to a half", lambda value: value[: len(value) // 2])
    kinds["values of the past"] = lambda server, keys: [server.do("PEXPIREAT", key, 1) for key in keys]
    kinds["values that end as they are read"] = lambda server, keys: [server.do("PEXPIRE", key, 3) for key in keys]
    kinds["moved elsewhere"] = lambda server, keys: [server.do("RENAME", key, b"elsewhere:" + key) for key in keys]

each(CANDIDATES, "half a character at the end", lambda value: value + b"\xe4\xb8")
each(CANDIDATES, "halves of surrogate pairs", lambda _: b"\xed\xa0\x80")
each(CANDIDATES, "overlong characters", lambda _: b"\xc0\x80\xc0\xaf")
each(CANDIDATES, "zeros", lambda _: bytes(1000))
each(CANDIDATES, "a text of megabytes", lambda _: b"man " * (HUGE // 4))

each(REPRESENTATIONS, "a flipped bit", lambda value: value[:20] + bytes([value[20] ^ 16]) + value[21:])
each(REPRESENTATIONS, "noise", lambda value: random.Random(0).randbytes(len(value)))
each(REPRESENTATIONS, "one byte less", lambda value: value[:-1])
each(REPRESENTATIONS, "one byte more", lambda value: value + b"\0")
each(REPRESENTATIONS, "twice the value", lambda value: value * 2)
each(REPRESENTATIONS, "a later version", lambda value: bytes([value[0] + 1]) + value[1:])
each(REPRESENTATIONS, "another dtype", lambda value: value[:1] + b"\3" + value[2:])
each(REPRESENTATIONS, "a claim of many rows", lambda value: value[:6] + b"\xff\xff\xff\xff" + value[10:])
each(REPRESENTATIONS, "another key's checksum", lambda value: sealed(value, value[HEAD_BYTES:]))
resealed("no numbers", lambda payload: payload[:COUNT_BYTES] + b"\x00\x7e" * ((len(payload) - COUNT_BYTES) // 2))
resealed("infinities", lambda payload: payload[:COUNT_BYTES] + b"\x00\xfc" * ((len(payload) - COUNT_BYTES) // 2))
resealed("half a number", lambda payload: payload[:-1])
resealed("no payload", lambda _: b"")


def swapped(server: RedisServer, keys: Sequence[bytes]) -> None:
    """Gives each text the representation of the next one."""
    values = [server.do("GET", key) for key in keys]
    for key, value in zip(keys, values[1:] + values[:1], strict=True):
        server.do("SET", key, value)


def of_another_model(server: RedisServer, keys: Sequence[bytes]) -> None:
    """Stores values that would be right for the same texts under the keys of another model."""
    for key in keys:
        value = server.do("GET", key)
        payload = value[HEAD_BYTES:]
        others = payload[:COUNT_BYTES] + payload[COUNT_BYTES:][::-1]
        server.do("SET", key, sealed(value, others, key.replace(key[13:17], b"0000", 1)))


REPRESENTATIONS["swapped"] = swapped
REPRESENTATIONS["of another model"] = of_another_model


def busy_script(server: RedisServer) -> None:
    """A script blocks the server, which first answers nobody, and then answers everybody that it is busy."""
    server.do("CONFIG", "SET", "busy-reply-threshold", 500)
    with redis.Redis(port=server.port) as client, contextlib.suppress(redis.ResponseError):
        threading.Timer(2.0, server.do, ("SCRIPT", "KILL")).start()
        client.eval("while true do end", 0)


def kills(server: RedisServer) -> None:
    for _ in range(50):
        server.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.02)


def set_for_a_while(name: str, value: str, after: str) -> Callable[[RedisServer], None]:
    """A state in which a setting has another value for a second, and applies to new connections."""

    def change(server: RedisServer) -> None:
        with redis.Redis(port=server.port, single_connection_client=True) as client:
            client.config_set(name, value)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            time.sleep(1.0)
            client.config_set(name, after)

    return change


def a_replica_of_nobody(server: RedisServer) -> None:
    """Refuses writes, like a replica that has lost its master."""
    server.do("REPLICAOF", "127.0.0.1", "1")
    time.sleep(1.0)
    server.do("REPLICAOF", "NO", "ONE")


def without_rights(server: RedisServer) -> None:
    """Forbids the service to read."""
    server.do("ACL", "SETUSER", "default", "-mget")
    time.sleep(1.0)
    server.do("ACL", "SETUSER", "default", "+mget")


def paused(server: RedisServer) -> None:
    server.do("CLIENT", "PAUSE", 1000, "ALL")
    time.sleep(1.0)


STATES: dict[str, Callable[[RedisServer], None]] = {
    "a busy script": busy_script,
    "connections that are killed": kills,
    "no output beyond a kilobyte": set_for_a_while("client-output-buffer-limit", "normal 1024 1024 1", "normal 0 0 0"),
    "one client at most": set_for_a_while("maxclients", "1", "1000"),
    "no room": set_for_a_while("maxmemory", "1", "0"),
    "a replica of nobody": a_replica_of_nobody,
    "without rights": without_rights,
    "paused": paused,
}
REPLIES: dict[str, bytes] = {
    "a page": b"HTTP/1.1 400 Bad Request\r\n\r\n<html>",
    "an error": b"-MISCONF no\r\n",
    "a value of terabytes": b"$99999999999999\r\nabc",
    "a list without an end": b"*2147483647\r\n$1\r\na\r\n",
    "lists in lists": b"*1\r\n" * 10_000,
    "numbers": b":1\r\n" * 100,
    "a list that is too short": b"*1\r\n$1\r\na\r\n",
    "a negative list": b"*-5\r\n",
    "noise": random.Random(1).randbytes(500),
    "ends of lines": b"\r\n" * 1000,
}
