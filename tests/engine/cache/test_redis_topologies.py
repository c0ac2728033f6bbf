"""The same cache over TLS, a unix socket, Sentinels and a cluster."""

import asyncio
import contextlib
import random
import socket
import subprocess
from pathlib import Path

import pytest
from redis.crc import key_slot
from support.proxy import proxy_to
from support.redis_server import RedisServer, free_port, redis_cluster, redis_sentinel, redis_server
from support.replica import Replica, replica, texts_of
from support.tasks import HANG_S

from bandrank.errors import NotReady

pytestmark = pytest.mark.slow

PASSWORD = "sesame"  # noqa: S105  # of servers that live for seconds


async def check_sharing(one: Replica, other: Replica, rng: random.Random) -> None:
    """Checks that a replica reads what another one stores, and that plain values are set and deleted."""
    texts = texts_of(rng, 300)
    assert await one.store(texts)
    lookup = await other.fetch(texts)
    assert (lookup.redis_hits, other.computed) == (300, [])
    assert other.redis is not None
    values = {f"plain{number}".encode(): b"1" for number in range(50)}
    assert await other.redis.set_many(values, ttl_s=100.0) == len(values)
    assert await other.redis.get_many([*values, b"none"]) == [*values.values(), None]
    assert await other.redis.delete_many([*values, b"none"]) == 50
    assert [other.sample("redis_errors_total", operation=name) for name in ("get", "set", "delete")] == [0, 0, 0]


async def stores_again(one: Replica, rng: random.Random) -> None:
    """Returns once the replica can store new texts."""
    async with asyncio.timeout(HANG_S):
        while not await one.store(texts_of(rng, 100)):  # noqa: ASYNC110  # Redis tells nobody
            await asyncio.sleep(0.05)


async def test_a_unix_socket(tmp_path: Path) -> None:
    """The URL selects a database other than the first."""
    with redis_server(tmp_path / "redis", "--unixsocket", "redis.sock") as server:
        url = f"unix://{tmp_path}/redis/redis.sock?db=2"
        async with replica(url) as one, replica(url) as other:
            await check_sharing(one, other, random.Random(1))
        assert server.do("INFO", "keyspace")["db2"]["keys"] == 300


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for 127.0.0.1 that is its own authority: cert.pem, key.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run([*command.split(), *files], cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed (Debian: openssl)")
    return folder


async def test_tls(tmp_path: Path, certificates: Path) -> None:
    """The server's certificate is checked, and an untrusted one is refused, as the error of `check` says."""
    port, certificate = free_port(), certificates / "cert.pem"
    files = ["--tls-cert-file", certificate, "--tls-key-file", certificates / "key.pem"]
    arguments = ["--port", "0", "--tls-port", port, *files, "--tls-ca-cert-file", certificate, "--tls-auth-clients no"]
    try:
        with redis_server(tmp_path / "redis", *" ".join(map(str, arguments)).split(), port=port):
            url = f"rediss://127.0.0.1:{port}"
            trusted = f"{url}?ssl_ca_certs={certificate}"
            async with replica(trusted) as one, replica(trusted) as other, replica(url) as wary:
                await check_sharing(one, other, random.Random(2))
                for number in range(4):
                    assert (await wary.fetch([f"text {number}"])).redis_hits == 0
                assert wary.sample("redis_breaker_state") == 2
                assert wary.redis is not None
                with pytest.raises(NotReady, match="certificate verify failed"):
                    await wary.redis.check()
    except RuntimeError as error:
        if "Bad directive" not in str(error) and "TLS" not in str(error):
            raise
        pytest.skip("redis-server was built without TLS")


async def test_an_address_that_leads_to_the_new_master(tmp_path: Path) -> None:
    """After a failover, writes follow the address to the new master, although the old one lives on with its connections
    open.
    """
    rng = random.Random(6)
    with redis_server(tmp_path / "a") as old, redis_server(tmp_path / "b") as new, proxy_to(old.port) as address:
        async with replica(address.url) as one, replica(address.url) as other:
            await check_sharing(one, other, rng)
            address.lead_to(new.port)
            old.do("REPLICAOF", "127.0.0.1", new.port)
            assert not await one.store(texts_of(rng, 10))
            assert other.redis is not None
            assert await other.redis.delete_many([b"plain"]) is None
            texts = texts_of(rng, 300)

            assert await one.store(texts)
            assert (await other.fetch(texts)).redis_hits == 300
            assert await other.redis.delete_many([b"plain"]) == 0
            assert new.do("DBSIZE") == 300


@pytest.mark.parametrize("num_silent", [1, 2, 4])
async def test_sentinels_that_say_nothing(tmp_path: Path, num_silent: int) -> None:
    """However many silent Sentinels come first in the URL, the one that answers is asked within a call's timeout."""
    with redis_server(tmp_path / "a", "--requirepass", PASSWORD) as master, contextlib.ExitStack() as at_end:
        silent = [at_end.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(num_silent)]
        with redis_sentinel(tmp_path / "s", master="ours", port=master.port, password=PASSWORD) as sentinel:
            ports = [*(each.getsockname()[1] for each in silent), sentinel.port]
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            async with replica(f"redis+sentinel://:{PASSWORD}@{hosts}/ours", timeout_s=1.0) as one:
                assert one.redis is not None
                await one.redis.check()

                assert await one.store(texts_of(random.Random(7), 100))


async def test_sentinels_name_the_new_master(tmp_path: Path) -> None:
    rng = random.Random(3)
    login = ["--requirepass", PASSWORD, "--masterauth", PASSWORD]
    with redis_server(tmp_path / "a", *login) as master, redis_server(tmp_path / "b", *login) as heir:
        heir.do("REPLICAOF", "127.0.0.1", master.port, password=PASSWORD)
        with redis_sentinel(tmp_path / "s", master="ours", port=master.port, password=PASSWORD) as sentinel:
            dead = f"127.0.0.1:{free_port()}"
            url = f"redis+sentinel://:{PASSWORD}@{dead},127.0.0.1:{sentinel.port}/ours/1"
            async with replica(url) as one, replica(url) as other:
                await check_sharing(one, other, rng)
                await until_replicated(heir)
                master.kill()
                await stores_again(one, rng)

                await stores_again(other, rng)
                texts = texts_of(rng, 300)

                assert heir.do("ROLE", password=PASSWORD)[0] == b"master"
                assert await one.store(texts)
                assert (await other.fetch(texts)).redis_hits == 300


async def until_replicated(heir: RedisServer) -> None:
    async with asyncio.timeout(HANG_S):
        while heir.do("ROLE", password=PASSWORD)[3] != b"connected":  # noqa: ASYNC110  # Redis tells nobody
            await asyncio.sleep(0.05)


async def test_a_cluster(tmp_path: Path) -> None:
    """The URL names only one of three nodes; a node that dies is left out until it is back."""
    rng = random.Random(4)
    with redis_cluster(tmp_path) as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        async with replica(url) as one, replica(url) as other:
            await check_sharing(one, other, rng)
            assert min(node.do("DBSIZE") for node in nodes) > 30
            nodes[1].kill()
            for _ in range(5):
                lookup = await one.fetch(texts_of(rng, 100))
                assert lookup.misses == 100
            assert one.sample("redis_breaker_state") == 2
            nodes[1].start()
            await stores_again(one, rng)
            await stores_again(other, rng)
            texts = texts_of(rng, 300)

            assert await one.store(texts)
            assert (await other.fetch(texts)).redis_hits == 300


async def test_a_cluster_with_the_url_of_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log and the error of `check` say that the URL should be one of a cluster, whichever slots the node has."""
    rng = random.Random(7)
    with redis_cluster(tmp_path, nodes=1) as [node]:
        async with replica(node.url) as one:
            assert one.redis is not None
            with pytest.raises(NotReady, match=r"its URL is redis\+cluster://"):
                await one.redis.check()
            for _ in range(3):
                await one.fetch(texts_of(rng, 100))
    assert "its URL is redis+cluster://" in caplog.text


async def test_a_cluster_whose_slots_move(tmp_path: Path) -> None:
    rng = random.Random(5)
    with redis_cluster(tmp_path, nodes=2) as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"
        async with replica(url) as one, replica(url) as other:
            await check_sharing(one, other, rng)
            moved = {key_slot(key) for key in nodes[1].do("KEYS", "bandrank:*")}
            nodes[1].do("FLUSHALL")
            heir = nodes[0].do("CLUSTER", "MYID").decode()
            for node in reversed(nodes):  # the giving node first, or it might claim the slots again
                for slot in moved:
                    node.do("CLUSTER", "SETSLOT", slot, "NODE", heir)
            nodes[0].do("CLUSTER", "BUMPEPOCH")
            await stores_again(one, rng)
            texts = texts_of(rng, 300)

            assert len(moved) > 10
            assert await one.store(texts)
            assert (await other.fetch(texts)).redis_hits == 300
        assert nodes[1].do("DBSIZE") == 0


async def test_a_cluster_whose_slots_are_on_their_way(tmp_path: Path) -> None:
    """Half of the keys have moved already: all are found, set and deleted, and Redis does not count as down."""
    rng = random.Random(6)
    with redis_cluster(tmp_path, nodes=2) as nodes:
        async with replica(f"redis+cluster://127.0.0.1:{nodes[0].port}") as one:
            texts, more = texts_of(rng, 300), texts_of(rng, 300)
            assert one.redis is not None
            assert await one.store(texts)
            await asyncio.gather(*[one.redis.get_many([b"%d" % number for number in range(99)]) for _ in range(4)])
            heir, giver = nodes
            keys = giver.do("KEYS", "bandrank:*")
            for slot in {key_slot(key) for key in keys}:
                heir.do("CLUSTER", "SETSLOT", slot, "IMPORTING", giver.do("CLUSTER", "MYID"))
                giver.do("CLUSTER", "SETSLOT", slot, "MIGRATING", heir.do("CLUSTER", "MYID"))
            for key in keys[::2]:
                giver.do("MIGRATE", "127.0.0.1", heir.port, key, 0, 1000)
            values = await one.redis.get_many([*keys, *(b"%b none" % key for key in keys)])
            assert await one.store(more)
            deleted = await one.redis.delete_many(keys)

            assert values is not None
            assert [value is not None for value in values] == [True] * len(keys) + [False] * len(keys)
            assert deleted == len(keys) > 50
            assert [one.sample("redis_errors_total", operation=name) for name in ("get", "set", "delete")] == [0, 0, 0]
