"""Compiles kernels to machine code without a GPU: calls NVRTC, the compiler that CuPy uses, through ctypes.

NVRTC's library and CUDA's headers come from the wheels nvidia-cuda-nvrtc and nvidia-cuda-runtime (in `bandrank[dev]`),
or else from a toolkit in CUDA_PATH or /usr/local/cuda.
"""

import ctypes
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Options that CuPy adds, apart from the architecture.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
OPTIONS = ("-std=c++17",)


class AssemblerNotFound(RuntimeError):
    """NVRTC or CUDA's headers are not installed; the message says what to install."""


class AssemblyError(RuntimeError):
    """The source does not compile; the message is the compiler's."""


@dataclass(frozen=True)
class Assembly:
    """The resources of one kernel on one architecture: registers per thread, and bytes per thread spilled to memory."""

    registers: int
    spilled_bytes: int


def assemble(source: str, kernels: Sequence[str], arch: str) -> dict[str, Assembly]:
    """Compiles one translation unit to machine code for `arch`, such as "sm_90", with the options that CuPy uses.

    kernels: name expressions.  Returns the resources of each. Raises AssemblerNotFound, AssemblyError.
    """
    nvrtc, headers = _nvrtc()
    options = [*OPTIONS, *CUPY_OPTIONS, f"-arch={arch}", f"-I{headers}", "--ptxas-options=-v"]
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    try:
        for kernel in kernels:
            nvrtc.nvrtcAddNameExpression(program, kernel.encode())
        encoded = [option.encode() for option in options]
        failed = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _log(nvrtc, program)
        if failed:
            raise AssemblyError(f"{arch}: {log}")
        usage = dict(_usage(log))
        return {kernel: usage[_lowered(nvrtc, program, kernel)] for kernel in kernels}
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def nvrtc_version() -> str:
    """Version of the installed compiler, such as "13.0". Raises AssemblerNotFound."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc()[0].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _usage(log: str) -> Iterator[tuple[str, Assembly]]:
    """Lowered names with the figures that ptxas reports."""
    for part in re.split(r"Compiling entry function '", log)[1:]:
        registers = re.search(r"Used (\d+) registers", part)
        spills = re.search(r"(\d+) bytes spill stores", part)
        assert registers is not None, f"unknown words of ptxas: {part}. This is a bug."
        assert spills is not None, f"unknown words of ptxas: {part}. This is a bug."
        yield part.partition("'")[0], Assembly(int(registers[1]), int(spills[1]))


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.value.decode()


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, kernel: str) -> str:
    name = ctypes.c_char_p()
    nvrtc.nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(name))
    assert name.value, f"{kernel} has no lowered name. This is a bug."
    return name.value.decode()


@cache
def _nvrtc() -> tuple[ctypes.CDLL, Path]:
    """The library, and the folder of cuda_fp16.h."""
    for root in _roots():
        headers = root / "include"
        libraries = [path for folder in ("lib", "lib64") for path in sorted((root / folder).glob("libnvrtc.so.*"))]
        if libraries and (headers / "cuda_fp16.h").is_file():
            # NVRTC opens its builtins by name alone, which finds them if they are loaded already.
            for builtins in sorted(libraries[0].parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(str(libraries[0])), headers
    raise AssemblerNotFound("no NVRTC with CUDA's headers; pip install nvidia-cuda-nvrtc nvidia-cuda-runtime")


def _roots() -> Iterator[Path]:
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu[0-9]*"), reverse=True)
    if path := os.environ.get("CUDA_PATH"):
        yield Path(path)
    yield Path("/usr/local/cuda")
