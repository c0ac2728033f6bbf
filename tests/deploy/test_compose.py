"""The compose stack: what each container may do, and whom it reaches."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.deploy import DEPLOY, ROOT, image_check, load_yaml, needs_program, run

from bandrank.settings import RESERVED, Settings, variable

COMPOSE = load_yaml(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLES = {path.parent.name: load_yaml(path) for path in sorted((DEPLOY / "examples").glob("*/compose.yml"))}
EVERY_SERVICE = SERVICES | {name: each for example in EXAMPLES.values() for name, each in example["services"].items()}
VOLUMES = set(COMPOSE["volumes"]).union(*(example["volumes"] for example in EXAMPLES.values()))
LOGINS = {"redis-login", "opensearch-login", "elasticsearch-login", "weaviate-login"}  # end before the others start
SET_UPS = {"opensearch-setup", "elasticsearch-setup", "weaviate-setup"}
ONE_SHOT = LOGINS | SET_UPS
PUBLISHED = {"bandrank", "prometheus", "grafana", "opensearch", "elasticsearch", "weaviate"}
DOCS = [*sorted(DEPLOY.rglob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", *DEPLOY.glob("*.yml")]
SETS = sorted(
    {("docker-compose.yml",)}
    | {
        tuple(re.findall(r"--file (\S+\.yml)", command))
        for path in DOCS
        for command in re.findall(r"docker compose((?: --file \S+\.yml)+)", path.read_text(encoding="utf-8"))
    }
)  # sets of compose files that commands in the docs lay over each other
LAPTOP = 8 << 30  # bytes of memory, of which the host needs one eighth itself


def bytes_of(size: str) -> int:
    """Returns the bytes of a size such as 64m, or of the default in ${NAME:-64m}."""
    match = re.fullmatch(r"(?:\$\{[A-Z_]+:-)?(\d+)(mb?|gb?)\}?", size)
    assert match, size
    number, unit = match.groups()
    return int(number) << {"m": 20, "g": 30}[unit[0]]


def volumes(name: str) -> dict[str, str]:
    return dict(volume.split(":")[:2] for volume in EVERY_SERVICE[name].get("volumes", []))


def test_the_files_fit_the_specification() -> None:
    checker = needs_program("check-jsonschema", "pip: check-jsonschema")
    files = [
        "docker-compose.yml",
        "deploy/compose.gpu.yml",
        "deploy/compose.proxy.yml",
        *(f"deploy/examples/{name}/compose.yml" for name in EXAMPLES),
    ]
    run(checker, "--builtin-schema", "vendor.compose-spec", *files)


def test_every_set_of_files_is_read() -> None:
    """The docs have a command for each compose file, laid over the stack or alone."""
    files = {"docker-compose.yml", *(str(path.relative_to(ROOT)) for path in DEPLOY.rglob("compose*.yml"))}

    assert {file for each in SETS for file in each} >= files


@pytest.mark.parametrize("files", SETS, ids="+".join)
def test_an_image_that_is_never_pulled_is_built(files: tuple[str, ...]) -> None:
    """On a new machine, a service cannot start from an image that is never pulled and that no other service builds."""
    merged: dict[str, dict[str, Any]] = {}
    for file in files:
        for name, service in load_yaml(ROOT / file)["services"].items():
            merged[name] = merged.get(name, {}) | service
    built = {service["image"] for service in merged.values() if "build" in service}
    never_pulled = {service["image"] for service in merged.values() if service.get("pull_policy") == "never"}

    assert built
    assert never_pulled <= built


@pytest.mark.parametrize(
    "service",
    [
        service
        for path in ("docker-compose.yml", "deploy/compose.proxy.yml")
        for service in load_yaml(ROOT / path)["services"].values()
        if "build" in service
    ],
    ids=["stack", "proxy"],
)
def test_its_health_check_is_the_images(service: dict[str, Any]) -> None:
    """The check leaves time to download a model, since whoever waits for a service gives up once it is unhealthy."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    check = service["healthcheck"]

    assert check["test"] == ["CMD", *image_check()]
    assert check["start_period"] == "30m"
    for option in ("interval", "timeout", "start_period", "retries"):
        assert f"--{option.replace('_', '-')}={check[option]} " in dockerfile


def test_the_services_are_known() -> None:
    """The tests below look at each of these services."""
    one_shot = {"redis-login", "opensearch-login", "opensearch-setup"}
    assert set(SERVICES) == {"bandrank", "redis", "prometheus", "grafana", "opensearch"} | one_shot
    assert set(EVERY_SERVICE) == set(SERVICES) | PUBLISHED | ONE_SHOT


def test_they_fit_a_laptop() -> None:
    """The memory limits add up to what the host can spare, without the services that run once and end."""
    assert sum(bytes_of(service["mem_limit"]) for name, service in SERVICES.items() if name not in ONE_SHOT) <= (
        LAPTOP - LAPTOP // 8
    )


@pytest.mark.parametrize("name", EVERY_SERVICE)
class TestEveryService:
    def test_has_no_privileges(self, name: str) -> None:
        service = EVERY_SERVICE[name]

        assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.keys() & {"cap_add", "privileged", "devices", "pid", "ipc", "userns_mode"}
        assert service.get("network_mode", "none") == "none"

    def test_writes_to_volumes_and_a_bounded_tmp_alone(self, name: str) -> None:
        """The root file system is read-only, and so is whatever is mounted from the repository."""
        service = EVERY_SERVICE[name]
        sizes = [re.fullmatch(r"/[a-z/]+:size=(\d+m)(?:,exec)?", tmp) for tmp in service["tmpfs"]]

        assert service["read_only"] is True
        assert sum(bytes_of(size[1]) for size in sizes if size) <= bytes_of(service["mem_limit"])
        assert all(sizes)
        for volume in service.get("volumes", []):
            source, *_ = volume.split(":")
            assert source in VOLUMES or ((ROOT / source).is_dir() and volume.endswith(":ro"))

    def test_is_limited(self, name: str) -> None:
        """Processes, open files, memory, CPUs and logs have bounds, and no core is dumped: it would hold queries."""
        service = EVERY_SERVICE[name]

        assert 0 < service["pids_limit"] <= 1024
        assert 0 < service["ulimits"]["nofile"] <= 65_536
        assert service["ulimits"]["core"] == 0
        assert bytes_of(service["mem_limit"]) > 0
        assert float(re.sub(r"\$\{\w+:-(.+)\}", r"\1", str(service["cpus"]))) > 0
        assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
        assert "limits" not in service.get("deploy", {}).get("resources", {})  # would override those above

    def test_is_of_a_pinned_image(self, name: str) -> None:
        """The image is tagged with a whole version, unless it is built here."""
        image = EVERY_SERVICE[name]["image"]

        if image == SERVICES["bandrank"]["image"]:
            assert "build" in EVERY_SERVICE[name] or EVERY_SERVICE[name]["pull_policy"] == "never"
        else:
            assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(-bookworm)?(@sha256:[0-9a-f]{64})?", image)

    def test_is_checked_and_restarted(self, name: str) -> None:
        """The service is checked and restarted, unless it runs once; dependents wait until it is healthy or done."""
        service = EVERY_SERVICE[name]
        waits = {
            other["depends_on"][name]["condition"]
            for other in EVERY_SERVICE.values()
            if name in other.get("depends_on", {})
        }

        if name in ONE_SHOT:
            assert service["restart"] == "no"
            assert waits == ({"service_completed_successfully"} if name in LOGINS else set())
        else:
            assert service["restart"] == "unless-stopped"
            assert service["healthcheck"]["test"]
            assert waits <= {"service_healthy"}

    def test_is_published_on_loopback(self, name: str) -> None:
        """By default, no port is reachable from another machine, and that of Redis not even from this one."""
        ports = EVERY_SERVICE[name].get("ports", [])

        assert bool(ports) == (name in PUBLISHED)
        assert all(re.fullmatch(r"\$\{[A-Z_]+:-127\.0\.0\.1:\d+\}:\d+", port) for port in ports)

    def test_has_no_password_in_its_description(self, name: str) -> None:
        """Passwords are in files, and environment and arguments hold only the paths."""
        service = EVERY_SERVICE[name]
        environment = service.get("environment", {})

        assert all(key.endswith("_FILE") for key in environment if re.search("PASSWORD|SECRET|TOKEN$", key))
        assert not re.search(
            r"\$\{?[A-Z_]*PASSWORD(?!__FILE\")", str(service.get("command")) + str(service.get("entrypoint"))
        )
        assert not re.search(r"://[^/]*:[^/]*@", str(environment))


def test_redis_is_reached_by_bandrank_alone() -> None:
    """The network of Redis leads nowhere else, and only its users mount the folder with its password."""
    members = {
        network: {n for n, s in SERVICES.items() if network in s.get("networks", [])} for network in COMPOSE["networks"]
    }
    login = {name for name in SERVICES if "redis-login" in volumes(name)}

    assert members == {
        "cache": {"bandrank", "redis"},
        "monitoring": {"bandrank", "prometheus", "grafana"},
        "search": {"bandrank", "opensearch", "opensearch-setup"},
    }
    assert COMPOSE["networks"]["cache"]["internal"] is True
    assert all(service.get("networks") or service.get("network_mode") == "none" for service in SERVICES.values())
    assert login == {"bandrank", "redis", "redis-login"}


def test_grafana_has_no_known_password() -> None:
    """Anyone may look; the administrator's password is random, and kept with the users that Grafana keeps."""
    environment = SERVICES["grafana"]["environment"]
    file = environment["GF_SECURITY_ADMIN_PASSWORD__FILE"]

    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert volumes("grafana")["grafana-data"] == str(Path(file).parent)
    assert "password.sh" in SERVICES["grafana"]["entrypoint"][-1]


def test_opensearch_has_no_known_password() -> None:
    """OpenSearch has the configuration of its version's image, but none of the image's users."""
    environment = SERVICES["opensearch"]["environment"]
    version = SERVICES["opensearch"]["image"].split(":")[1]
    config = {name: mounts for name in SERVICES if (mounts := volumes(name)).get(f"opensearch-config-{version}")}

    assert environment["DISABLE_INSTALL_DEMO_CONFIG"] == "true"
    assert not any(key == "plugins.security.disabled" or key.startswith("DISABLE_SECURITY") for key in environment)
    assert environment["plugins.security.allow_default_init_securityindex"] == "true"
    assert set(config) == {"opensearch", "opensearch-login"}
    assert SERVICES["opensearch-login"]["image"] == SERVICES["opensearch"]["image"]
    login = {name for name in SERVICES if "opensearch-login" in volumes(name)}
    assert login == {"opensearch", "opensearch-login", "opensearch-setup"}


@pytest.mark.parametrize("name", sorted(SET_UPS))
def test_a_set_up_waits_for_what_it_needs(name: str) -> None:
    """A set-up runs our script, with a mounted login, once bandrank and the search engine are healthy."""
    service = EVERY_SERVICE[name]
    engine = name.removesuffix("-setup")
    _, script, option, password_file = service["entrypoint"]
    waited = {*service["depends_on"], *EVERY_SERVICE[engine]["depends_on"]}

    assert {"bandrank", engine} <= waited
    assert script == f"/search/set_up_{engine}.py"
    assert (DEPLOY / "search" / Path(script).name).is_file()
    assert volumes(name)["./deploy/search"] == "/search"
    assert option == "--password-file"
    assert volumes(name)[f"{engine}-login"] == str(Path(password_file).parent)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_as_hard_as_the_stack(name: str) -> None:
    """An example repeats the rules of the stack, asks for its login, and is of one version throughout."""
    services = EXAMPLES[name]["services"]
    configs = {volume for volume in EXAMPLES[name]["volumes"] if "-config-" in volume}

    assert EXAMPLES[name]["x-hardened"] == COMPOSE["x-hardened"]
    assert set(services) == {name, f"{name}-login", f"{name}-setup"}
    assert configs <= {f"{name}-config-{services[name]['image'].split(':')[1]}"}
    assert not re.search("security.enabled: false|ANONYMOUS_ACCESS_ENABLED: true", str(services).replace("'", ""))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_tells_its_own_port(name: str) -> None:
    """Every address of this machine in an example's README is the one at which its search engine is published."""
    (port,) = re.findall(r":-(127\.0\.0\.1:\d+)", EXAMPLES[name]["services"][name]["ports"][0])
    readme = (DEPLOY / "examples" / name / "README.md").read_text(encoding="utf-8")

    assert set(re.findall(r"127\.0\.0\.1:\d+", readme)) == {port}


def test_every_setting_they_name_is_one() -> None:
    """A variable that the service does not know would keep it from starting."""
    files = [ROOT / "Dockerfile", ROOT / "Makefile", ROOT / "docker-compose.yml", *DEPLOY.rglob("*")]
    named = {
        name
        for path in files
        if path.is_file()
        for name in re.findall(r"BANDRANK_[A-Z_]+", path.read_text(encoding="utf-8"))
    }

    assert named <= {*map(variable, Settings.model_fields), *RESERVED}
    assert {"BANDRANK_MODEL", "BANDRANK_PORT", "BANDRANK_REDIS_URL"} <= named
