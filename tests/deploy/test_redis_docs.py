"""The addresses and the rights that docs/operations.md names for a Redis of your own work."""

import random
import re
from pathlib import Path

import pytest
from support.deploy import DEPLOY, ROOT
from support.redis_server import RedisServer, redis_cluster, redis_sentinel, redis_server
from support.replica import replica, texts_of

from bandrank.engine.cache.redis_url import SCHEMES, parse_redis_url

DOCS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PASSWORD = "sesame"  # noqa: S105  # of servers that live for seconds
OF_SERVERS, KEYS, OF_CLUSTERS, OF_SENTINELS = re.findall(
    r"\*\*Rights\*\*: `(.+?)` on `(.+?)`; in a cluster also `(.+?)`; .*?`(.+?)`", DOCS, re.DOTALL
)[0]


def allow(server: RedisServer, *rights: str, **login: str) -> None:
    """Makes a user `bandrank` with these rights and no others."""
    server.do("ACL", "SETUSER", "bandrank", "on", f">{PASSWORD}", "resetchannels", *" ".join(rights).split(), **login)


async def stores(url: str) -> bool:
    """Returns whether Redis answers the check and keeps what it is given."""
    async with replica(url, timeout_s=1.0) as one:
        assert one.redis is not None
        await one.redis.check()
        await one.redis.delete_many([b"bandrank:none"])
        return await one.store(texts_of(random.Random(1), 50))


def test_addresses_can_be_read(tmp_path: Path) -> None:
    """The documented addresses include one of each kind."""
    (tmp_path / "password").write_text(PASSWORD, encoding="ascii")
    (block,) = re.findall(r"\*\*Addresses\*\*.*?```\n(.*?)```", DOCS, re.DOTALL)
    urls = re.findall(r"^ *(\S+)", block, re.MULTILINE)
    kinds = {parse_redis_url(url.replace("=PATH", f"={tmp_path}/password")).kind for url in urls}

    assert kinds == {kind for kind, _ in SCHEMES.values()}


def test_the_stack_gives_the_same_rights() -> None:
    """The stack's one user has the rights that are documented for a single server."""
    script = (DEPLOY / "secrets" / "redis_login.sh").read_text(encoding="utf-8")

    assert f" {KEYS} resetchannels {OF_SERVERS}\n" in script


@pytest.mark.slow
async def test_a_cluster_may_be_used(tmp_path: Path) -> None:
    """The client may look up slots, and follow them where they move."""
    with redis_cluster(tmp_path) as nodes:
        for node in nodes:
            allow(node, KEYS, OF_SERVERS, OF_CLUSTERS)

        assert nodes[0].do("ASKING", username="bandrank", password=PASSWORD)
        assert await stores(f"redis+cluster://bandrank:{PASSWORD}@127.0.0.1:{nodes[0].port}")


@pytest.mark.slow
async def test_sentinels_may_be_asked(tmp_path: Path) -> None:
    """The user on the sentinel may do nothing but what is documented."""
    with (
        redis_server(tmp_path / "master", "--requirepass", PASSWORD) as master,
        redis_sentinel(tmp_path / "sentinel", master="ours", port=master.port, password=PASSWORD) as sentinel,
    ):
        allow(master, KEYS, OF_SERVERS, password=PASSWORD)
        allow(sentinel, OF_SENTINELS)
        sentinel.do("ACL", "SETUSER", "default", "off")
        login = f"sentinel_username=bandrank&sentinel_password={PASSWORD}"

        assert await stores(f"redis+sentinel://bandrank:{PASSWORD}@127.0.0.1:{sentinel.port}/ours?{login}")
