"""Rules of the house that import-linter cannot express."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "bandrank": ROOT / "service" / "bandrank",
    "bandrank_kernels": ROOT / "kernels" / "bandrank_kernels",
    "bandrank_training": ROOT / "training" / "bandrank_training",
    "bandrank_bench": ROOT / "bench" / "bandrank_bench",
}
PEERS = "bench/bandrank_bench/cpu/peers.py"
ONNX_FILES = "bench/bandrank_bench/onnx_files.py"
SENTENCE = "bench/bandrank_bench/sentence.py"
MODELS = "service/bandrank/models"
HF = f"{MODELS}/hf"
# For each of these libraries, the only files that may import it.
FENCES = {
    "httpcore2": {"service/bandrank/proxy/upstream.py"},
    "cupy": {"kernels/bandrank_kernels/launch.py"},
    "onnx": {ONNX_FILES},
    "onnxruntime": {ONNX_FILES},
    "openvino": {PEERS},
    "redis": {"service/bandrank/engine/cache/redis_commands.py"},
    "sentence_transformers": {SENTENCE},
    "prometheus_client": {"service/bandrank/metrics.py"},
    "transformers": {
        f"{HF}/chat_template.py",
        f"{HF}/eurobert.py",
        f"{HF}/files.py",
        f"{HF}/llama.py",
        *(f"{HF}/{family}.py" for family in ("bert", "deberta", "electra", "gemma3", "modernbert", "roberta", "t5")),
    },
    "huggingface_hub": {f"{HF}/files.py", f"{HF}/families.py"},
    "tokenizers": {f"{HF}/files.py", f"{MODELS}/loading.py", f"{MODELS}/places.py", f"{MODELS}/texts.py"},
}
UNFENCED = {"transformers", "tokenizers"}  # benchmarks compare with them, and may import them too
MOST_LINES = 350  # a file can be read in one sitting
MOST_TRACKED_BYTES = 45 << 20  # with the shipped checkpoints; a larger checkout could not be sent everywhere


def sources() -> list[Path]:
    """Every module of our packages."""
    return sorted(path for folder in PACKAGES.values() for path in folder.rglob("*.py"))


def python_files() -> list[Path]:
    """Every module of our packages, and those of tests, loadtests and deploy."""
    around = [path for name in ("tests", "loadtests", "deploy") for path in (ROOT / name).rglob("*.py")]
    return sources() + sorted(around)


def modules() -> list[str]:
    """The importable names of the modules of our packages, except those that import optional libraries."""
    return [
        ".".join((name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        for name, folder in PACKAGES.items()
        for path in sorted(folder.rglob("*.py"))
        if path not in {ROOT / PEERS, ROOT / SENTENCE, ROOT / ONNX_FILES}
    ]


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import statement of a file, at any depth."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(path: Path) -> Iterator[str]:
    """The top-level names that a file imports."""
    for node in imports(path):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif node.module:
            yield node.module.split(".")[0]


def test_the_packages_are_found() -> None:
    """Without any files to check, the tests below would pass."""
    expected = {"bandrank.__main__", "bandrank.engine.task_queue", "bandrank_kernels", "bandrank_training"}
    assert expected | {"bandrank_bench.__main__", "bandrank_bench.gpu.check"} <= set(modules())


@pytest.mark.parametrize("library", FENCES)
def test_a_library_stays_behind_its_fence(library: str) -> None:
    """A change in a library must affect these files and no others."""
    users = {str(path.relative_to(ROOT)) for path in sources() if library in imported(path)}
    if library in UNFENCED:
        users = {user for user in users if not user.startswith("bench/")}

    assert users == FENCES[library]


def test_every_family_loads_with_the_oldest_transformers() -> None:
    """What version 5.0 lacks is imported where it is used: a missing name would stop the folders of all families."""
    of_old = ["Bert", "DebertaV2", "Electra", "Gemma3Text", "MT5", "ModernBert", "Roberta", "T5"]
    imported_at_once = {
        alias.name
        for path in sources()
        if (ROOT / "service") in path.parents
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module == "transformers"
        for alias in node.names
    }

    assert imported_at_once == {f"{name}Config" for name in of_old}


def test_the_emulator_imports_kernels_alone() -> None:
    """The emulator imports no test code, so that it could be used elsewhere."""
    known = {"emulation", "bandrank_kernels"}
    files = (ROOT / "tests" / "emulation").rglob("*.py")
    ours = {name for path in files for name in imported(path) if name in {*PACKAGES, "emulation", "support"}}

    assert ours == known


def test_imports_are_absolute() -> None:
    relative = [
        f"{path}:{node.lineno}"
        for path in sources()
        for node in imports(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert relative == []


def test_no_file_is_too_long() -> None:
    """A longer file holds two ideas."""
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}

    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_importing_is_silent() -> None:
    """No module prints, logs or warns when it is imported, or sets up logging or threads of its own."""
    program = f"""
import importlib, logging, threading, warnings
threads = threading.active_count()
for name in {modules()!r}:
    with warnings.catch_warnings(record=True) as caught:
        importlib.import_module(name)
    ours = [str(warning.message) for warning in caught if "bandrank" in warning.filename]
    assert not ours, (name, ours)
assert not logging.getLogger().handlers
assert not logging.getLogger("bandrank").handlers
assert threading.active_count() == threads
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["bandrank -h", "bandrank serve -h", "bandrank key a", "bandrank models"])
def test_what_loads_no_model_does_not_wait_for_torch(command: str) -> None:
    ran = subprocess.run([sys.executable, "-Ximporttime", "-m", *command.split()], capture_output=True, check=True)

    assert b"bandrank.errors" in ran.stderr.split()
    assert b"torch" not in ran.stderr.split()


def test_a_checkout_is_small() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of the repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]

    assert sum(path.stat().st_size for path in paths if path.is_file()) <= MOST_TRACKED_BYTES


def test_git_ignores_the_secrets_that_the_pages_tell_users_to_make() -> None:
    """`git add .` in a checkout that serves must not publish keys."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of the repository")
    secrets = ["search.key", "keys.toml", "keys/prometheus", ".env"]
    ignored = subprocess.run(["git", "check-ignore", *secrets], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ignored.stdout.split() == secrets
