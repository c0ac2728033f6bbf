"""The Redis commands that are needed here, on one server, behind Sentinels and on a cluster; only this file imports
redis.

Nothing is retried: the cache would rather miss, and its circuit breaker decides when to ask again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from bandrank.engine.cache.redis_url import RedisAddress


class RedisCommands(Protocol):
    """One round trip each, to every server that is concerned. Whatever goes wrong is raised."""

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        """Sets each key; returns why the server refused those that it did not set."""

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        """How many of the keys there were."""

    async def close(self) -> None:
        """Closes all connections."""


def connect(
    address: RedisAddress, *, connect_timeout_s: float, socket_timeout_s: float, max_connections: int
) -> RedisCommands:
    """Commands for the server at an address. Connections, `max_connections` to a server, are made when first used.

    socket_timeout_s: after which a connection that owes a reply is closed.
    """
    options: dict[str, Any] = {  # arguments of redis' constructors, of all types
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": socket_timeout_s,
        "max_connections": max_connections,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # 3 sends the password in a HELLO, whose arguments an old server repeats in its error
    }
    if address.tls is not None:
        options |= {"ssl": True, **address.tls}
    login: dict[str, Any] = {"username": address.username, "password": address.password}
    match address.kind:
        case "server":
            host, port = address.hosts[0]
            return ServerCommands(Redis(host=host, port=port, db=address.db, **login, **options))
        case "socket":
            return ServerCommands(Redis(unix_socket_path=address.path, db=address.db, **login, **options))
        case "sentinel":
            own = {"username": address.sentinel_username, "password": address.sentinel_password}
            sentinel = Sentinel(address.hosts, sentinel_kwargs=options | own)  # type: ignore[no-untyped-call]  # theirs
            master = sentinel.master_for(address.master, db=address.db, **login, **options)
            return ServerCommands(master, *sentinel.sentinels)
        case "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            # Not dynamic: the named hosts are asked again when all the nodes that they told of have moved.
            return ClusterCommands(RedisCluster(startup_nodes=nodes, dynamic_startup_nodes=False, **login, **options))


class ServerCommands:
    """On one server; `others` are closed with it."""

    def __init__(self, client: Redis, *others: Redis) -> None:
        self._client = client
        self._others = others

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return _as_bytes(await self._client.mget(keys))

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        pipeline = self._client.pipeline(transaction=False)
        for key, value in entries.items():
            pipeline.set(key, value, px=ttl_ms)
        return _refusals(await pipeline.execute(raise_on_error=False))

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        return await self._client.unlink(*keys)

    async def close(self) -> None:
        for client in (self._client, *self._others):
            await client.aclose()


class ClusterCommands:
    """On a cluster: keys of one slot share a command, and the commands of one node a round trip."""

    def __init__(self, client: RedisCluster) -> None:
        self._client = client

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        async with self._learning():
            return _as_bytes(await self._client.mget_nonatomic(keys))

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        async with self._learning():
            pipeline = self._client.pipeline()
            for key, value in entries.items():
                pipeline.set(key, value, px=ttl_ms)
            return _refusals(await pipeline.execute(raise_on_error=False))

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        async with self._learning():
            return await self._client.unlink(*keys)

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _learning(self) -> AsyncIterator[None]:
        """After an error the next command asks which nodes there are: without retries redis-py would not."""
        try:
            yield
        except Exception:
            await self._client.aclose()
            raise


def _as_bytes(values: list[Any]) -> list[bytes | None]:
    """Replies are bytes, for nothing here asks for decoded ones; redis' types do not know."""
    return values


def _refusals(replies: Sequence[Any]) -> list[Exception]:
    """What the server answered in place of OK. Raises what is not an answer, such as a lost connection."""
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    for error in errors:
        if not isinstance(error, ResponseError):
            raise error
    return errors
