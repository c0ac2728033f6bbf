"""The Redis commands that the cache needs, on one server, behind Sentinels and on a cluster.

Only this file imports redis. Nothing is retried: the cache would rather miss, and its circuit breaker decides when to
ask again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode, PipelineCommand
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterCrossSlotError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from bandrank.engine.cache.redis_url import RedisAddress


def lacks_room(refusal: Exception) -> bool:
    """Whether a server refused a key because its memory is full."""
    return isinstance(refusal, OutOfMemoryError)


def is_refusal(error: object) -> bool:
    """Whether a server answered, with an error."""
    return isinstance(error, ResponseError)


def reason(error: object) -> str:
    """What went wrong, without the server's own words, which may contain a secret. Those of the system and of TLS tell
    a misspelt host from a closed port and from an unknown certificate.
    """
    name = type(error).__name__
    if isinstance(error, MovedError | ClusterCrossSlotError):
        return f"{name}, as of a cluster: its URL is redis+cluster:// or rediss+cluster://"
    beneath = error
    while isinstance(beneath, BaseException) and not isinstance(beneath, OSError):
        beneath = beneath.__cause__ or beneath.__context__
    said = str(beneath or "")
    return f"{name}: {said}" if said else name


class RedisCommands(Protocol):
    """Commands that each take one round trip to every server concerned. All errors are raised."""

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    async def sizes(self, keys: Sequence[bytes]) -> list[int]:
        """The size of each key's value in bytes, 0 where there is none or the server does not say."""

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        """Sets each key, to expire after `ttl_ms` if given; returns the server's error for each key it refused."""

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        """Deletes keys; returns how many of them existed."""

    async def close(self) -> None:
        """Closes all connections."""


def connect(
    address: RedisAddress, *, connect_timeout_s: float, socket_timeout_s: float, max_connections: int
) -> RedisCommands:
    """Commands for the server at an address. Up to `max_connections` to each server are opened when first used.

    socket_timeout_s: seconds after which a connection that owes a reply is closed. If there are many Sentinels, each
    gets less, so that all of them have a turn within the two timeouts together.
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
            # Sentinels are asked one after another within a call, and most of them may be silent.
            share_s = (connect_timeout_s + socket_timeout_s) / len(address.hosts)
            options_there = options | {
                "username": address.sentinel_username,
                "password": address.sentinel_password,
                "socket_connect_timeout": min(connect_timeout_s, share_s),
                "socket_timeout": min(socket_timeout_s, share_s),
            }
            sentinel = Sentinel(address.hosts, sentinel_kwargs=options_there)  # type: ignore[no-untyped-call]
            master = sentinel.master_for(address.master, db=address.db, **login, **options)
            return ServerCommands(master, *sentinel.sentinels)
        case "cluster":
            nodes = [ClusterNode(host, port) for host, port in address.hosts]
            # Not dynamic: if all the nodes that they listed have moved, the named hosts are asked again.
            return ClusterCommands(RedisCluster(startup_nodes=nodes, dynamic_startup_nodes=False, **login, **options))


class ServerCommands:
    """Commands on one server; `others` are closed with it."""

    def __init__(self, client: Redis, *others: Redis) -> None:
        self._client = client
        self._others = others

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return _values(await self._client.mget(keys), len(keys))

    async def sizes(self, keys: Sequence[bytes]) -> list[int]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)
        return _sizes(await pipeline.execute(raise_on_error=False))

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        pipeline = self._client.pipeline(transaction=False)
        for key, value in entries.items():
            pipeline.set(key, value, px=ttl_ms)
        refusals = _not_stored(await pipeline.execute(raise_on_error=False))
        if any(isinstance(error, ReadOnlyError) for error in refusals):
            await self._reconnect()
        return refusals

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        try:
            return _count(await self._client.unlink(*keys))
        except ReadOnlyError:
            await self._reconnect()
            raise

    async def _reconnect(self) -> None:
        """Closes idle connections: the server has become a replica, and its address may lead to the new master by now.

        A connection that is in use comes here itself if it is used for a write.
        """
        await self._client.connection_pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        for client in (self._client, *self._others):
            await client.aclose()


class ClusterCommands:
    """Commands on a cluster: keys of one slot share a command, and the commands of one node share a round trip.

    While a slot moves to another node, some of its keys are there already, so each key gets a command of its own.
    """

    def __init__(self, client: RedisCluster) -> None:
        self._client = client

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: dict[bytes, bytes | None] = {}
        for group, reply in await self._do_grouped("MGET", keys):
            values |= zip(group, _values(reply, len(group)), strict=True)
        return [values[key] for key in keys]

    async def sizes(self, keys: Sequence[bytes]) -> list[int]:
        return _sizes(await self._do([("STRLEN", key) for key in keys]))

    async def set_many(self, entries: Mapping[bytes, bytes], ttl_ms: int | None) -> list[Exception]:
        expiry = () if ttl_ms is None else ("PX", ttl_ms)
        return _not_stored(await self._do([("SET", key, value, *expiry) for key, value in entries.items()]))

    async def delete_many(self, keys: Sequence[bytes]) -> int:
        return sum([_count(reply) for _, reply in await self._do_grouped("UNLINK", keys)])

    async def close(self) -> None:
        await self._client.aclose()
        for node in (*self._client.get_nodes(), *self._client.nodes_manager.startup_nodes.values()):
            await node.disconnect()  # a call may have opened connections after `aclose` was last called

    async def _do_grouped(self, name: str, keys: Sequence[bytes]) -> list[tuple[list[bytes], Any]]:
        """Groups of keys, each with the reply to its command: all keys of a slot, or one of a slot that is moving."""
        groups = self._by_slot(keys)
        replies = [*zip(groups, await self._do([(name, *group) for group in groups]), strict=True)]
        moving = [[key] for group, reply in replies if isinstance(reply, TryAgainError) for key in group]
        if moving:
            replies = [(group, reply) for group, reply in replies if not isinstance(reply, TryAgainError)]
            replies += zip(moving, await self._do([(name, *key) for key in moving]), strict=True)
        if refusals := _refusals([reply for _, reply in replies]):
            raise refusals[0]
        return replies

    def _by_slot(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        groups: dict[int, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            groups.setdefault(self._client.keyslot(key), []).append(key)
        return list(groups.values())

    async def _do(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The reply to each command, or the server's error. The first argument of a command is a key."""
        try:
            replies = await self._followed(commands, await self._scatter(commands))
            _refusals(replies)
        except Exception:
            # Without retries redis-py keeps to the nodes that it knows; once closed, it asks for them again.
            await self._client.aclose()
            raise
        return replies

    async def _scatter(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Runs one pipeline on every node concerned.

        With a single pipeline for all nodes, redis-py would leave the commands on the others running unattended if one
        failed.
        """
        await self._client.initialize()
        by_node: dict[str, list[int]] = {}
        for index, (_, key, *_) in enumerate(commands):
            node = self._client.get_node_from_key(key)
            assert node is not None, "only a slot's replica may be missing. This is a bug."
            by_node.setdefault(node.name, []).append(index)
        pipelines = [self._pipeline([commands[index] for index in indices]) for indices in by_node.values()]
        answers = await asyncio.gather(*pipelines, return_exceptions=True)
        replies: dict[int, Any] = {}
        for indices, answer in zip(by_node.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            replies |= zip(indices, answer, strict=True)
        return [replies[index] for index in range(len(commands))]

    async def _pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        pipeline = self._client.pipeline()
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False, allow_redirections=False)

    async def _followed(self, commands: Sequence[tuple[Any, ...]], replies: list[Any]) -> list[Any]:
        """The replies, with each redirection replaced by the reply of the node that it names.

        redis-py would send the ASKING for a moving key over a connection that may not be the command's.
        """
        asking: dict[tuple[str, int], list[int]] = {}
        for index, reply in enumerate(replies):
            if isinstance(reply, MovedError):  # which is an AskError too
                try:
                    replies[index] = await self._client.execute_command(*commands[index])
                except ResponseError as error:
                    replies[index] = error
            elif isinstance(reply, AskError):
                asking.setdefault((reply.host, reply.port), []).append(index)
        for (host, port), indices in asking.items():
            node = self._client.get_node(host, port)
            if node is None:  # the node is new, and this is its first slot
                continue
            asked = [PipelineCommand(0, *each) for index in indices for each in (("ASKING",), commands[index])]
            await node.execute_pipeline(asked)
            for index, command in zip(indices, asked[1::2], strict=True):
                replies[index] = command.result
        return replies


def _values(reply: object, count: int) -> list[bytes | None]:
    """The reply to an MGET of `count` keys. Raises ValueError for a reply that no Redis gives."""
    if isinstance(reply, list) and len(reply) == count and all(isinstance(each, bytes | None) for each in reply):
        return reply
    raise ValueError(f"expected {count} values from Redis, got {type(reply).__name__}")


def _count(reply: object) -> int:
    """The reply to an UNLINK. Raises ValueError for a reply that no Redis gives."""
    if isinstance(reply, int):
        return reply
    raise ValueError(f"expected a number from Redis, got {type(reply).__name__}")


def _not_stored(replies: Sequence[Any]) -> list[Exception]:
    """The errors among the replies to SETs. Raises ValueError for a reply that no Redis gives."""
    if not all(reply is True or isinstance(reply, Exception) for reply in replies):
        raise ValueError("expected OK from Redis, got another reply")
    return _refusals(replies)


def _sizes(replies: Sequence[Any]) -> list[int]:
    _refusals(replies)
    return [reply if isinstance(reply, int) else 0 for reply in replies]


def _refusals(replies: Sequence[Any]) -> list[Exception]:
    """The errors that the server replied with. Raises an error that did not come from it, such as a lost connection."""
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    for error in errors:
        if not isinstance(error, ResponseError):
            raise error
    return errors
