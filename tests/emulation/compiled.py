"""Kernels on the CPU: their text compiled with g++ behind the headers of `cuda_on_cpu`, launched on NumPy arrays."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

HEADERS = Path(__file__).parent / "cuda_on_cpu"
# Compiled kernels are kept between runs under a name that says what they were made of.
BUILDS = Path(__file__).resolve().parents[2] / "build" / "emulation"
SCHEDULES: list["Schedule"] = ["depth first", "round robin"]

_compiling_shared = threading.Lock()  # sources are compiled side by side, what they share only once

Schedule = Literal["depth first", "round robin"]
Size = tuple[int, int, int]

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels run on the CPU through g++, not found")


class EmulationError(RuntimeError):
    """A kernel that does not compile, or a launch that went wrong; the message says in which block, thread and line."""


class Emulation:
    """Kernels of one source text, which the constructor compiles.

    kernels: C++ names with their template arguments.  sanitize: checks addresses and their alignment.
    Raises EmulationError with the compiler's message.
    """

    def __init__(self, source: str, kernels: Sequence[str], *, sanitize: bool = False) -> None:
        self._library = ctypes.CDLL(str(_build(source, kernels, sanitize=sanitize)))
        self._kernels = {name: getattr(self._library, f"launch_{i}") for i, name in enumerate(kernels)}
        for function in self._kernels.values():
            function.restype = ctypes.c_bool

    def launch(
        self,
        kernel: str,
        *,
        grid: Size,
        block: Size,
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        schedule: Schedule = "depth first",
        seed: int = 0,
    ) -> None:
        """Runs every block to its end. Raises EmulationError for barriers that do not match and similar faults."""
        held = [np.uintp(value.ctypes.data) if value.ndim else value for value in map(np.asanyarray, arguments)]
        cells = [np.array(value) for value in held]
        good = self._kernels[kernel](
            ctypes.c_int(len(cells)),
            (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells)),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            ctypes.c_size_t(shared_bytes),
            ctypes.c_int(SCHEDULES.index(schedule)),
            ctypes.c_uint64(seed),
        )
        if not good:
            self._library.launch_error.restype = ctypes.c_char_p
            raise EmulationError(self._library.launch_error().decode())

    def set(self, name: str, value: int) -> None:
        """Sets an `extern "C" int` of the source."""
        ctypes.c_int.in_dll(self._library, name).value = value


def run_sanitized(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a Python program in a process that can load emulations made with `sanitize=True`."""
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python does not free its memory at exit, and the sanitizer cannot follow fibers from stack to stack.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, check=False
    )


def _build(source: str, kernels: Sequence[str], *, sanitize: bool) -> Path:
    launchers = "\n".join(f"CUDA_ON_CPU_LAUNCHER(launch_{i}, {name})" for i, name in enumerate(kernels))
    flags = ["-std=c++17", "-O1", "-fPIC", "-fno-strict-aliasing", "-Wall", "-Wno-unknown-pragmas"]
    if sanitize:
        flags += ["-g1", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment"]
    contents = "".join(path.read_text(encoding="utf-8") for path in sorted(HEADERS.glob("*.[hc]*")))
    with _compiling_shared:
        # Compiled headers halve the time of a kernel; g++ looks for the .gch first.
        header = _compile(flags, ["-x", "c++-header"], '#include "cuda_on_cpu.h"', contents, "cuda_on_cpu.h.gch")
        schedule = _compile(flags, ["-c", "-x", "c++"], '#include "schedule.cpp"', contents, "schedule.o")
    arguments = ["-shared", str(schedule), f"-I{header.parent}", "-include", "cuda_on_cpu.h", "-x", "c++"]
    return _compile(flags, arguments, f"{source}\n{launchers}\n", contents, "kernels.so")


def _compile(flags: Sequence[str], arguments: Sequence[str], text: str, headers: str, name: str) -> Path:
    """Compiles `text` by g++ to a folder named after all inputs, unless an earlier run has done it."""
    made_of = "\0".join([*flags, text, headers])
    folder = BUILDS / hashlib.sha256(made_of.encode()).hexdigest()[:24]
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            made = Path(draft) / name
            source = Path(draft) / "kernels.cu"
            source.write_text(text, encoding="utf-8")
            command = ["g++", *flags, *arguments, f"-I{HEADERS}", str(source), "-o", str(made)]
            compiled = subprocess.run(command, capture_output=True, text=True, check=False)
            if compiled.returncode:
                raise EmulationError(compiled.stderr)
            made.replace(folder / name)
    return folder / name
