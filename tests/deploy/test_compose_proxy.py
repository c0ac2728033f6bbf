"""The compose file of the search proxy: it is as hardened as the stack."""

from support.deploy import DEPLOY, ROOT, load_yaml

from bandrank.settings import Settings, variable

STACK = load_yaml(ROOT / "docker-compose.yml")["services"]["bandrank"]
PROXY = load_yaml(DEPLOY / "compose.proxy.yml")["services"]["search-proxy"]
HARDENED = (
    "user",
    "read_only",
    "tmpfs",
    "cap_drop",
    "security_opt",
    "pids_limit",
    "ulimits",
    "mem_limit",
    "cpus",
    "restart",
    "logging",
)


def test_it_is_as_hardened_as_the_service() -> None:
    """The proxy's container has the bounds of the service's, and its port is on the loopback interface too."""
    assert {key: PROXY[key] for key in HARDENED} == {key: STACK[key] for key in HARDENED}
    assert PROXY["ports"] == ["${PROXY_PUBLISH:-127.0.0.1:9201}:8000"]
    assert not PROXY.keys() & {"cap_add", "privileged", "devices", "pid", "ipc", "network_mode"}


def test_all_containers_fit_on_one_machine() -> None:
    """No two compose files publish the same port, so a proxy may stand beside any of the examples."""
    files = [ROOT / "docker-compose.yml", *DEPLOY.rglob("compose*.yml")]
    services = [service for path in files for service in load_yaml(path)["services"].values()]
    ports = [port.split("}")[0] for service in services for port in service.get("ports", [])]
    taken = [port.rpartition(":")[2] for port in ports]

    assert len(set(taken)) == len(taken) > len(files)


def test_it_may_wait_for_the_search_engine_when_it_stops() -> None:
    """The grace period covers the longest request to the search engine."""
    assert PROXY["stop_grace_period"] == f"{Settings().proxy_timeout_s + 5:g}s"


def test_every_setting_of_the_proxy_reaches_it() -> None:
    """The environment passes all settings on but those that name files, which would have to be mounted."""
    names = {name for name in Settings.model_fields if name.startswith("proxy_")} - {"proxy_ca", "proxy_rules"}

    assert {variable(name) for name in names} - PROXY["environment"].keys() == set()


def test_it_runs_a_proxy_and_checks_it() -> None:
    """The image's health check asks the proxy itself: a probe of the service would be passed on to the engine."""
    assert PROXY["command"] == ["bandrank", "proxy"]
    assert PROXY["healthcheck"] == STACK["healthcheck"]
