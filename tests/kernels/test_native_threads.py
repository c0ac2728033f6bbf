"""Large operations of the CPU kernels are shared among threads, and give the same bits."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.layouts import packed_rows
from support.native import needs_native
from support.torch_threads import torch_threads

from bandrank_kernels.native.tensors import Norm, PostNorm, PreNorm, Turn, Unit, linear, project
from bandrank_kernels.native.threads import in_parts
from bandrank_kernels.native.weights import PackedWeights
from bandrank_kernels.windowed_attention import AttentionPattern, windowed_attention


@pytest.fixture
def three_threads() -> Iterator[None]:
    with torch_threads(3):
        yield


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (1, 1), (19, 1), (20, 2), (29, 2), (30, 3), (100, 3), (101, 3)])
@pytest.mark.usefixtures("three_threads")
def test_parts_cover_everything_once(count: int, parts: int) -> None:
    """Each part runs on a thread of its own, and has at least ten items if there are as many."""
    seen: list[tuple[int, int]] = []
    threads = set()
    together = threading.Barrier(parts, timeout=20)

    def run(begin: int, end: int) -> None:
        together.wait()
        seen.append((begin, end))
        threads.add(threading.get_ident())

    in_parts(count, 10, run)

    assert sorted(index for begin, end in seen for index in range(begin, end)) == list(range(count))
    assert len(threads) == len(seen) == parts
    assert all(end - begin >= min(count, 10) for begin, end in seen)


@pytest.mark.usefixtures("three_threads")
def test_parts_of_any_number_share_the_same_threads() -> None:
    """With a pool for each number of parts, a machine with many processors would keep very many threads."""
    threads = set()

    for parts in (2, 3):
        together = threading.Barrier(parts, timeout=20)

        def run(_begin: int, _end: int, together: threading.Barrier = together) -> None:
            together.wait()
            threads.add(threading.get_ident())

        in_parts(10 * parts, 10, run)

    assert len(threads) == 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_of_a_part_is_raised() -> None:
    def run(begin: int, _: int) -> None:
        if begin:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        in_parts(30, 10, run)


@pytest.mark.usefixtures("three_threads")
def test_where_no_thread_can_be_had_the_caller_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part runs once, and an error in one of them is raised when all have ended."""
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr("bandrank_kernels.native.threads._pool", lambda _: ended)
    seen: list[tuple[int, int]] = []

    def run(begin: int, end: int) -> None:
        seen.append((begin, end))
        if begin == 10:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        in_parts(30, 10, run)

    assert seen == [(0, 10), (10, 20), (20, 30)]


PROCESSES = """
import os, sys, threading
import torch
from bandrank_kernels.native.threads import in_parts

def at_once(name):
    together = threading.Barrier(3, timeout=20)
    in_parts(30, 10, lambda begin, end: together.wait())
    print(name, flush=True)

def late():
    threading.main_thread().join()
    seen = []
    in_parts(30, 10, lambda begin, end: seen.append(begin))
    print(sorted(seen))

torch.set_num_threads(3)
at_once("parent")
if os.fork() == 0:
    at_once("child")
    os._exit(0)
os.wait()
threading.Thread(target=late).start()
"""


def test_a_forked_process_has_threads_of_its_own_and_an_ending_one_none() -> None:
    """A thread that the ending process still waits for gets its parts computed all the same."""
    result = subprocess.run([sys.executable, "-c", PROCESSES], capture_output=True, text=True, timeout=60, check=False)

    assert result.stdout == "parent\nchild\n[0, 10, 20]\n", result.stderr


@needs_native
def test_threads_do_not_change_a_bit() -> None:
    x, hidden = torch.randn(700, 96)[:, :48], torch.randn(700, 48)
    layers = [
        PackedWeights.pack(torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(shape[0]), None)
        for shape in ((48, 48), (192, 48), (48, 192))
    ]
    gated = layers[0], PackedWeights.pack(torch.ones(384, 48, dtype=torch.int8), torch.rand(384), None), layers[2]
    norm = Norm(torch.rand(48), torch.rand(48), 1e-12)
    rows = packed_rows([6], [[600, 40, 3]], shared=True)
    qkv, tables = torch.randn(rows.num_rows, 3, 2, 32), (torch.rand(700, 32), torch.rand(700, 32))

    def everything() -> list[torch.Tensor]:
        patterns = (AttentionPattern.sparse(4), AttentionPattern.sparse(None))
        return [
            linear(x, layers[1], gelu=True),
            PostNorm(*layers, Unit.GELU, norm, norm)(x, hidden),
            PreNorm(*gated, Unit.GEGLU, norm, norm)(x, hidden),
            project(hidden, gated[1], norm, Turn(64, 4, torch.arange(700), tables)),
            *(windowed_attention(qkv, rows, pattern, backend="native") for pattern in patterns),
        ]

    one = everything()
    with torch_threads(3):
        three = everything()

    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
