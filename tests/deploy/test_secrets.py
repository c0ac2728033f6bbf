"""The passwords that the compose stack makes, and what a real Redis lets their holder do."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.deploy import DEPLOY, ROOT, load_yaml, needs_program, run
from support.redis_server import RedisServer, redis_server
from support.tasks import wait_until

from bandrank.engine.cache.redis_client import RedisClient
from bandrank.metrics import Metrics

SERVICES: dict[str, dict[str, Any]] = load_yaml(ROOT / "docker-compose.yml")["services"]
PASSWORD = "/run/redis-login/password"  # noqa: S105 -- a path


def make(script: str, *arguments: str | Path) -> None:
    run("sh", DEPLOY / "secrets" / script, *arguments)


class TestPasswords:
    def test_are_made_once(self, tmp_path: Path) -> None:
        """Passwords are random and readable by their owner alone, and a second run keeps them."""
        for name in ("first", "second"):
            make("password.sh", tmp_path / name)
        first, second = ((tmp_path / name).read_text(encoding="ascii") for name in ("first", "second"))
        make("password.sh", tmp_path / "first")

        assert first != second
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in (first, second))
        assert (tmp_path / "first").read_text(encoding="ascii") == first
        assert (tmp_path / "first").stat().st_mode & 0o077 == 0

    def test_grafana_is_given_one(self, tmp_path: Path) -> None:
        """Grafana's entrypoint makes a password, and does not start the image's own entrypoint without one."""
        shell, option, script = SERVICES["grafana"]["entrypoint"]
        script = (
            script.replace("$$", "$").replace("/deploy", str(DEPLOY / "secrets")).replace("/run.sh", "echo started")
        )

        for file, said in ((tmp_path / "password", "started\n"), (tmp_path / "nowhere" / "password", "")):
            environ = {"GF_SECURITY_ADMIN_PASSWORD__FILE": str(file), "PATH": "/usr/bin:/bin"}
            ended = subprocess.run([shell, option, script], env=environ, capture_output=True, text=True, check=False)
            assert ended.stdout == said
            assert file.exists() == bool(said)


HASH_TOOL = r"""
test "$1" = -env && echo "** deprecated **" && printf '$2y$12$%s\n' "$(echo "${!2}" | sha256sum | cut -c1-53)"
"""


@pytest.fixture(scope="module")
def keytool() -> Path:
    """Returns Java's program for certificates, which OpenSearch's image has too."""
    return Path(needs_program("keytool", "Debian: default-jre-headless")).resolve()


@pytest.fixture(scope="module")
def home(keytool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder like OpenSearch's, with the image's users and a stand-in for its hash program, logged in to."""
    home = tmp_path_factory.mktemp("opensearch")
    tools = home / "plugins" / "opensearch-security" / "tools"
    tools.mkdir(parents=True)
    (tools / "hash.sh").write_text(HASH_TOOL, encoding="ascii")
    users = home / "config" / "opensearch-security" / "internal_users.yml"
    users.parent.mkdir(parents=True)
    users.write_text("kibanaserver:\n  hash: known\n", encoding="ascii")
    (home / "login").mkdir()
    log_in(home, keytool)
    return home


def log_in(home: Path, keytool: Path) -> None:
    """Runs the login script as the one-shot service does."""
    environ = {"OPENSEARCH_HOME": str(home), "JAVA_HOME": str(keytool.parents[1]), "PATH": "/usr/bin:/bin"}
    command = ["bash", DEPLOY / "secrets" / "opensearch_login.sh", home / "login"]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


class TestOpenSearchLogin:
    def test_the_administrator_is_the_only_user(self, home: Path) -> None:
        """The administrator has the rights of `admin` and a random password, which others in the stack can read."""
        users = load_yaml(home / "config" / "opensearch-security" / "internal_users.yml")
        password = home / "login" / "password"

        assert re.fullmatch("[0-9a-f]{64}", password.read_text(encoding="ascii"))
        assert password.stat().st_mode & 0o777 == 0o444
        assert set(users) == {"_meta", "admin"}
        assert users["_meta"] == {"type": "internalusers", "config_version": 2}
        assert users["admin"]["backend_roles"] == ["admin"]
        assert re.fullmatch(r"\$2y\$12\$[0-9a-f]{53}", users["admin"]["hash"])

    def test_the_node_has_a_certificate_of_its_own(self, home: Path, keytool: Path) -> None:
        """The node trusts its certificate, and no other user can read it."""
        stores = {"node.p12": "PrivateKeyEntry", "trusted.p12": "trustedCertEntry"}
        prints = set()
        for name, kind in stores.items():
            command = [keytool, "-list", "-keystore", home / "config" / name, "-storepass", "changeit"]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert kind in listed
            assert (home / "config" / name).stat().st_mode & 0o077 == 0
            prints |= set(re.findall(r"fingerprint.*: (\S+)", listed))

        assert len(prints) == 1

    def test_a_second_start_keeps_both(self, home: Path, keytool: Path) -> None:
        """A second start keeps the password and the certificate."""
        kept = [home / "login" / "password", home / "config" / "node.p12", home / "config" / "trusted.p12"]
        before = [path.read_bytes() for path in kept]
        log_in(home, keytool)

        assert [path.read_bytes() for path in kept] == before


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder that the one-shot service fills."""
    folder = tmp_path_factory.mktemp("login")
    make("redis_login.sh", folder)
    return folder


@pytest.fixture(scope="module")
def guarded(login: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yields a Redis with the command line of the stack."""
    words = [re.sub(r"\$\{\w+:-(.+)\}", r"\1", word) for word in SERVICES["redis"]["command"]]
    arguments = [word.replace(str(Path(PASSWORD).parent), str(login)) for word in words]
    assert arguments[0] == "redis-server"
    with redis_server(tmp_path_factory.mktemp("redis"), *arguments[1:]) as running:
        yield running


class TestRedisLogin:
    def test_nobody_gets_in_without_the_password(self, guarded: RedisServer) -> None:
        for login in ({}, {"password": "guess"}, {"username": "bandrank", "password": "guess"}):
            with pytest.raises(redis.AuthenticationError):
                guarded.do("PING", **login)

    @pytest.mark.parametrize(
        "command",
        ["CONFIG GET *", "FLUSHALL", "KEYS *", "ACL LIST", "EVAL x 0", "GET bandrank:a", "SET other 1", "MGET other"],
    )
    def test_the_service_may_do_no_more_than_it_does(self, guarded: RedisServer, login: Path, command: str) -> None:
        password = (login / "password").read_text(encoding="ascii")

        with pytest.raises(redis.exceptions.NoPermissionError):
            guarded.do(*command.split(), username="bandrank", password=password)

    async def test_the_service_gets_in(self, guarded: RedisServer, login: Path) -> None:
        """With the URL of the stack, the service can store, read and delete."""
        url = SERVICES["bandrank"]["environment"]["BANDRANK_REDIS_URL"]
        assert f"?password_file={PASSWORD}" in url
        url = url.replace("@redis:6379", f"@127.0.0.1:{guarded.port}").replace(PASSWORD, str(login / "password"))
        client = RedisClient.from_url(url, timeout_s=5.0, metrics=Metrics())

        assert await client.set_many({b"bandrank:a": b"1"}, ttl_s=None)
        assert await client.set_many({b"bandrank:b": b"2"}, ttl_s=60.0)
        assert await client.get_many([b"bandrank:a", b"bandrank:b", b"bandrank:c"]) == [b"1", b"2", None]
        assert await client.delete_many([b"bandrank:a", b"bandrank:b"]) == 2
        await client.close()

    def test_what_is_registered_outlives_a_crash(self, guarded: RedisServer, login: Path) -> None:
        """Redis restores registered candidates from its append-only file, which a slow disk delays."""
        who = {"username": "bandrank", "password": (login / "password").read_text(encoding="ascii")}
        guarded.do("SET", "bandrank:kept", "1", **who)
        wait_until(lambda: any(b"bandrank:kept" in path.read_bytes() for path in guarded.log.parent.rglob("*.aof")))
        guarded.kill()
        guarded.start()

        assert guarded.do("MGET", "bandrank:kept", **who) == [b"1"]

    def test_the_health_check_gets_in(self, guarded: RedisServer, login: Path) -> None:
        program = needs_program("redis-cli", "Debian: redis-tools")
        kind, test = SERVICES["redis"]["healthcheck"]["test"]
        test = test.replace("$$", "$").replace("redis-cli", f"{program} -p {guarded.port}")

        assert kind == "CMD-SHELL"
        for file, status in ((login / "password", 0), (login / "users.acl", 1)):
            ended = subprocess.run(["sh", "-c", test.replace(PASSWORD, str(file))], capture_output=True, check=False)
            assert ended.returncode == status

    def test_the_password_stays(self, login: Path) -> None:
        """A second start keeps the password, all who mount the folder can read it, and Redis gets only its digest."""
        password = (login / "password").read_text(encoding="ascii")
        make("redis_login.sh", login)

        assert (login / "password").read_text(encoding="ascii") == password
        assert password not in (login / "users.acl").read_text(encoding="ascii")
        assert all((login / name).stat().st_mode & 0o777 == 0o444 for name in ("password", "users.acl"))
        assert {path.name for path in login.iterdir()} == {"password", "users.acl"}

    def test_redis_does_not_start_without_it(self, tmp_path: Path) -> None:
        """A stack without a login has no Redis, rather than an open one."""
        with (
            pytest.raises(RuntimeError, match=r"users\.acl"),
            redis_server(tmp_path, "--aclfile", str(tmp_path / "users.acl")),
        ):
            pass
