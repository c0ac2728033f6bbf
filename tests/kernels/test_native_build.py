"""How the CPU kernels are built and found, and that they stay within their memory."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.native import needs_native

from bandrank_kernels.native import build, library, variants
from bandrank_kernels.native.variants import (
    AMX,
    AVX2,
    AVX512,
    AVX512_BF16,
    VARIANTS,
    buildable_variants,
    usable_variants,
)

FOUND = library.load()  # loaded before the fixture hides it


@pytest.fixture(autouse=True)
def forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives a test empty folders of libraries, and forgets the library that it loads."""
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@needs_native
def test_they_are_built_once() -> None:
    first = library.native()
    made = first.path.stat().st_mtime_ns
    library.load.cache_clear()

    assert library.native().path == first.path
    assert first.path.stat().st_mtime_ns == made
    assert first.path.is_relative_to(build.user_cache())


@needs_native
def test_a_library_in_the_package_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image has no compiler and brings its library in the package; a user without a home folder can load it too."""
    assert isinstance(FOUND, library.Library)
    shutil.copytree(FOUND.path.parent, build.BUILT)
    assert library.native().path == build.BUILT / FOUND.path.name
    library.load.cache_clear()
    without_home(monkeypatch)

    assert library.native().path == build.BUILT / FOUND.path.name


def without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process look like that of a user without a home folder, whom the system does not know."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)


@pytest.mark.slow
@needs_native
def test_several_processes_may_build_at_once(tmp_path: Path) -> None:
    variant = usable_variants()[0]
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: build.build(variant, tmp_path / "together"), range(2)))

    assert list((tmp_path / "together").iterdir()) == list(paths)


def test_without_a_compiler_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """`why_no_native` returns the reason without raising, so callers that can do without the kernels go on."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(variants, "_processor_flags", lambda: AVX512)
    monkeypatch.setattr(library, "usable_variants", lambda: VARIANTS)

    assert "apt-get install g++" in str(library.why_no_native())
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler"):
        library.native()


def test_the_compiler_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX may hold arguments, as in `ccache g++`, and a compiler that does not exist is named in the error."""
    monkeypatch.setenv("CXX", "env -u LANG g++")
    assert build.find_compiler() == [shutil.which("env"), "-u", "LANG", "g++"]
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(build.CannotBuild, match="there is no no-such-compiler, which the environment variable CXX"):
        build.find_compiler()


@pytest.mark.slow
@needs_native
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++ (Debian: clang)")
def test_clang_builds_them_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no g++, clang++ builds a library of the same instructions, although it names them differently."""
    assert isinstance(FOUND, library.Library)
    monkeypatch.setenv("CXX", "clang++")

    built = library.Library(build.build(usable_variants()[0], tmp_path), FOUND.variant)

    assert (built.depth, built.has_bfloat16) == (FOUND.depth, FOUND.has_bfloat16)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the encoding of its words."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nprintf 'note: \\374bel\\nerror: no such option\\n' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))

    with pytest.raises(build.CannotBuild, match="fails: error: no such option"):
        build.build(VARIANTS[0], tmp_path / "folder")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both a file in the folder's place and a cache folder that may not even be looked into raise CannotBuild."""
    monkeypatch.setenv("CXX", "true")
    (tmp_path / "file").write_text("")
    with pytest.raises(build.CannotBuild, match="cannot be written"):
        build.build(VARIANTS[0], tmp_path / "file" / "folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / (300 * "x")))  # refused, as others' folders are
    with pytest.raises(build.CannotBuild, match=r"cannot be written: .*; XDG_CACHE_HOME may name another folder"):
        build.find(VARIANTS[0])


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    without_home(monkeypatch)
    with pytest.raises(build.CannotBuild, match="no home folder to build them in; XDG_CACHE_HOME may name another"):
        build.find(VARIANTS[0])


@needs_native
def test_part_of_a_library_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash or a full disk may leave part of a library, and loading that would kill the process."""
    assert isinstance(FOUND, library.Library)
    monkeypatch.setenv("CXX", "no-such-compiler")
    whole, best = FOUND.path.read_bytes(), usable_variants()[0]
    path = build.user_cache() / FOUND.path.name
    path.parent.mkdir(parents=True)
    for size in (0, 60, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(build.CannotBuild, match="no-such-compiler"):
            build.find(best)
    path.write_bytes(whole)

    assert build.find(best) == path


@pytest.fixture(scope="module")
def second_best() -> Path | None:
    """Returns the library of the processor's second-best variant, or None if it has no such variant."""
    return build.find(usable_variants()[1]) if len(usable_variants()) > 1 else None


@needs_native
def test_a_file_that_cannot_be_loaded_is_named(second_best: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    """The next best variant runs instead, if there is one."""
    best, *others = usable_variants()
    damaged = build.user_cache() / build.file_name(best)
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"\x7fELF" + bytes(60))

    if second_best:
        shutil.copy(second_best, damaged.parent)
        assert library.native().variant == others[0].name
    else:
        assert f"{damaged} cannot be loaded" in str(library.why_no_native())
    assert f"CPU kernels for {best.name} cannot be used: {damaged} cannot be loaded" in caplog.text


WITHOUT_TILES = """
import ctypes
from bandrank_kernels.native import library

class Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

room = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, len(room))), None) == 0
print(library.native().variant)
"""


@pytest.mark.skipif("amx" not in [variant.name for variant in usable_variants()], reason="a processor without AMX")
@needs_native
def test_without_leave_to_use_tiles_the_next_variant_runs() -> None:
    """Linux refuses AMX to a process whose stack for signal handlers is too small for the state of the tiles."""
    result = subprocess.run([sys.executable, "-c", WITHOUT_TILES], capture_output=True, text=True, check=True)

    assert result.stdout == "avx512_vnni\n"
    assert "amx cannot be used: the system does not let this process use AMX" in result.stderr


@pytest.mark.parametrize(
    ("machine", "flags", "names"),
    [
        ("x86_64", frozenset(), []),
        ("x86_64", AVX2, ["avx2"]),
        ("x86_64", AVX2 | {"avx_vnni"}, ["avx_vnni", "avx2"]),
        ("x86_64", AVX512, ["avx512_vnni", "avx2"]),
        ("x86_64", AVX512 - {"avx512_vnni"}, ["avx2"]),
        ("x86_64", AVX512 | {"avx512_bf16"}, ["avx512_vnni", "avx2"]),  # as of an Intel Xeon whose AMX is hidden
        ("x86_64", AVX512_BF16, ["avx512_bf16", "avx512_vnni", "avx2"]),
        ("x86_64", AMX, ["amx", "avx512_vnni", "avx2"]),
        ("aarch64", frozenset({"fp", "asimd"}), []),
        ("aarch64", frozenset({"fp", "asimd", "asimddp"}), ["dotprod"]),
        ("riscv64", frozenset(), []),
    ],
)
def test_the_best_variant_that_the_processor_has_comes_first(
    machine: str, flags: frozenset[str], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_processor_flags", lambda: flags)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    usable_variants.cache_clear()
    try:
        assert [variant.name for variant in usable_variants()] == names
        if not names:
            assert "neither AVX2 nor" in str(library.why_no_native())
    finally:
        usable_variants.cache_clear()


# The macros by which compilers tell which instructions they may use, by the names that Linux gives these.
X86_64 = {
    "cx16": "__GCC_HAVE_SYNC_COMPARE_AND_SWAP_16",
    "lahf_lm": "__LAHF_SAHF__",
    "pni": "__SSE3__",
    "abm": "__LZCNT__",
    "bmi1": "__BMI__",
    "avx_vnni": "__AVXVNNI__",
    **{
        name: f"__{name.upper()}__"
        for name in ("popcnt", "ssse3", "sse4a", "sse4_1", "sse4_2", "xsave", "avx", "avx2", "f16c")
    },
    **{name: f"__{name.upper()}__" for name in ("fma", "bmi2", "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq")},
    **{name: f"__{name.upper()}__" for name in ("avx512vl", "amx_tile", "amx_int8", "amx_bf16")},
    **{name: f"__{name.replace('_', '').upper()}__" for name in ("avx512_vnni", "avx512_bf16")},
}


@needs_native
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64")
@pytest.mark.parametrize("variant", buildable_variants(), ids=lambda variant: variant.name)
def test_a_processor_has_all_that_the_compiler_may_use(variant: variants.Variant) -> None:
    """The compiler may add instructions by itself, and a virtual machine may lack some of a processor's level."""
    command = [*build.find_compiler(), *variant.options, "-dM", "-E", "-x", "c++", "/dev/null"]
    defined = {line.split()[1] for line in subprocess.check_output(command, text=True).splitlines()}

    assert {name for name, macro in X86_64.items() if macro in defined} == variant.needs


@pytest.mark.slow
@needs_native
def test_the_command_builds_every_variant(tmp_path: Path) -> None:
    """The command builds every variant for this kind of processor into the package, of which the test makes a copy."""
    package = Path(build.__file__).parents[1]
    copy = tmp_path / "bandrank_kernels"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("built", "__pycache__"))

    result = subprocess.run(
        [sys.executable, "-m", "bandrank_kernels.native.build"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": str(Path(build.find_compiler()[0]).parent)},
        capture_output=True,
        text=True,
        check=True,
    )

    built = sorted(path.name for path in (copy / "native" / "built").iterdir())
    assert built == sorted(map(build.file_name, buildable_variants()))
    assert len(result.stdout.splitlines()) == len(built) > 0


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("variant", usable_variants(), ids=lambda variant: variant.name)
def test_sanitizers_find_nothing(variant: variants.Variant, tmp_path: Path) -> None:
    """A program calls the kernels with odd sizes, on memory of exactly the right size, under two sanitizers."""
    program = tmp_path / "sanitised"
    source = Path(__file__).with_name("native_sanitised.cpp")
    checks = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    flags = ["-std=c++20", "-O1", "-g", *checks]
    subprocess.run(
        [*build.find_compiler(), *flags, *variant.options, f"-I{build.SOURCES}", "-o", str(program), str(source)],
        check=True,
    )

    result = subprocess.run([str(program)], capture_output=True, text=True, check=False)

    assert result.stdout == "clean\n", result.stderr[:3000]


def numbers_of(program: Path, *emulator: str) -> np.ndarray:
    """Returns what every function computed in a program built from native_sanitised.cpp."""
    result = subprocess.run([*emulator, str(program), "numbers"], capture_output=True, text=True, check=True)
    return np.array(result.stdout.split(), np.float32)


@pytest.mark.slow
@needs_native
@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")),
    reason="no compiler for Arm and no emulator (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_arm_computes_the_same(tmp_path: Path) -> None:
    """Results agree to rounding or, where that moves a number to the next of its row's 255 steps, to about a step."""
    source = Path(__file__).with_name("native_sanitised.cpp")
    # Attention in bfloat16 is too coarse to compare with.
    ours = next(variant for variant in usable_variants() if variant.name not in {"amx", "avx512_bf16"})
    arms = next(variant for variant in VARIANTS if variant.name == "dotprod")
    for compiler, variant in ((build.find_compiler(), ours), (["aarch64-linux-gnu-g++"], arms)):
        flags = [
            *(option for option in build.OPTIONS if option not in {"-shared", "-fPIC"}),
            "-static",
            *variant.options,
        ]
        program = tmp_path / variant.name
        subprocess.run([*compiler, *flags, f"-I{build.SOURCES}", "-o", str(program), str(source)], check=True)

    arm, here = numbers_of(tmp_path / arms.name, "qemu-aarch64"), numbers_of(tmp_path / ours.name)

    apart = np.abs(arm - here) / (1 + np.abs(here))
    assert len(arm) > 2_000_000
    assert np.mean(apart > 1e-5) < 0.005
    assert apart.max() < 0.1
