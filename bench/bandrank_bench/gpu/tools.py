"""Programs of the CUDA toolkit that a machine may or may not have."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bandrank_bench.gpu.records import Skipped
from bandrank_bench.gpu.stage import Facts

FOLDERS = ("/usr/local/cuda/bin", *map(str, sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)))
TAIL = 4000  # characters of a tool's words that are kept


def find(tool: str) -> str | None:
    """Its path, on PATH or where the toolkit puts it."""
    return shutil.which(tool) or shutil.which(tool, path=os.pathsep.join(FOLDERS))


def on_launches(tool: str, options: Sequence[str], launches: Sequence[str], *, cap_s: float) -> str:
    """What a tool says of `python -m bandrank_bench.gpu.launches`, which makes the launches named.

    Raises Skipped without the tool, RuntimeError if it fails or takes longer than `cap_s`.
    """
    path = find(tool)
    if path is None:
        raise Skipped(f"{tool} is not installed")
    command = [path, *options, sys.executable, "-m", "bandrank_bench.gpu.launches", *launches]
    # Each tensor an allocation of its own, so that a step beyond its end is seen.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Into a file: a pipe would be waited for as long as anything that the tool started holds it.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            process = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, timeout=cap_s, check=False
            )
            problem = f"ended with {process.returncode}" if process.returncode else None
        except subprocess.TimeoutExpired:
            problem = f"took longer than {cap_s:.0f} s"
        output.seek(0)
        said = output.read()
    if problem:
        raise RuntimeError(f"{tool} {problem}: {said[-TAIL:]}")
    return said


def ask_card(*fields: str) -> Facts:
    """What nvidia-smi says of the first card; nothing where there is none."""
    path = find("nvidia-smi")
    if path is None:
        return {}
    command = [path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    return dict(zip(fields, (value.strip() for value in answer.strip().split(",")), strict=False))


def card_name() -> str:
    """As part of a file's name, such as "nvidia-h100-80gb-hbm3"."""
    name = str(ask_card("name").get("name", "")) or "no-card"
    return "-".join("".join(char if char.isalnum() else " " for char in name.lower()).split())
