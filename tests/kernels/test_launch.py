"""What is checked before a kernel is launched, and what cupy is given."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bandrank_kernels import launch
from bandrank_kernels.cuda import driver
from bandrank_kernels.launch import Kernel, Launch, cuda_obstacle, is_vectorizable, struct_of

PAIR = np.dtype([("count", np.int32), ("address", np.uint64)], align=True)
PARAMS, _ = struct_of(PAIR, {"count": 3, "address": 2**40})
LAUNCH = Launch(kernel=Kernel("", "scale<float>"), blocks=7, threads=128, params=PARAMS)


def test_what_cupy_is_handed() -> None:
    """Cupy gets tuples of sizes, one struct by value (an array of one), shared memory, and a stream with only an
    address.
    """
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    replace(LAUNCH, shared_bytes=64).call(lambda *args, **kwargs: calls.append((args, kwargs)), stream=1234)
    [((grid, block, arguments), named)] = calls

    assert (grid, block) == ((7,), (128,))
    assert [argument.tobytes() for argument in arguments] == [bytes([3, 0, 0, 0] + [0] * 9 + [1, 0, 0])]
    assert named.pop("stream").ptr == 1234
    assert named == {"shared_mem": 64}


def test_what_the_driver_is_handed_for_a_launch_that_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, the stream, the one attribute, the function, and the address of the struct; its errors are raised."""
    seen: list[tuple[Any, ...]] = []

    class Library:
        code = 0

        def cuLaunchKernelEx(self, config: Any, function: Any, arguments: Any, extra: None) -> int:  # noqa: N802  # the driver's
            given = config._obj
            attribute = given.attributes[0]
            struct = ctypes.string_at(arguments[0], PAIR.itemsize)
            sizes = [*given.grid], [*given.block], given.shared_bytes, given.stream, given.num_attributes
            seen.append((*sizes, attribute.id, attribute.value[0], function.value, struct, extra))
            return self.code

        def cuGetErrorString(self, _code: int, text: Any) -> None:  # noqa: N802  # likewise
            text._obj.value = b"out of luck"

    library = Library()
    monkeypatch.setattr(driver, "_driver", lambda: library)
    early = replace(LAUNCH, shared_bytes=64)
    early.call_early(4321, stream=1234)

    assert seen == [([7, 1, 1], [128, 1, 1], 64, 1234, 1, 6, 1, 4321, LAUNCH.params.tobytes(), None)]
    library.code = 719
    with pytest.raises(RuntimeError, match=r"out of luck \(719\)"):
        early.call_early(4321, stream=1234)


def test_a_kernel_that_waits_begins_early() -> None:
    assert not LAUNCH.kernel.is_early
    assert Kernel("void f() {\n  wait_for_earlier_launches();\n}", "f").is_early


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": 0}, r"scale<float>: blocks must be within 1\.\.2147483647, got 0"),
        ({"blocks": 2**31}, "blocks must be within .*, got 2147483648"),
        ({"threads": 1025}, r"threads must be within 1\.\.1024, got 1025"),
        ({"shared_bytes": 65537}, "a block can have 65536 bytes of shared memory on this device, got 65537"),
        ({"params": np.zeros(2, PAIR)}, r"params must be one struct, got \(2,\)"),
    ],
)
def test_what_cuda_would_refuse_is_refused_before(change: dict[str, Any], message: str) -> None:
    """The message has the kernel's name and the limit, where CUDA itself says only 'invalid argument'."""
    LAUNCH.check(65536)
    with pytest.raises(ValueError, match=message):
        replace(LAUNCH, **change).check(65536)


@pytest.mark.parametrize(("of_torch", "of_cupy", "made_current"), [(1, 1, []), (0, 1, [1]), (1, 0, [1])])
def test_a_device_is_made_current_where_it_is_not(
    of_torch: int, of_cupy: int, made_current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch is on the device's current stream. There is no device here: what knows of one is replaced."""
    streams: list[int] = []
    entered: list[int] = []

    class Loaded:
        max_shared_bytes = 0

        def allow(self, shared_bytes: int) -> None: ...

        def current_device(self) -> int:
            return of_cupy

        def enqueue(self, _: Launch, stream: int) -> None:
            streams.append(stream)

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        entered.append(device.index)
        yield

    monkeypatch.setattr(launch, "load", lambda *_: Loaded())
    monkeypatch.setattr(launch, "_current", current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: of_torch)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 1000 + index, raising=False)
    launch.launch(LAUNCH, torch.device("cuda", 1))

    assert (entered, streams) == (made_current, [1001])


def test_a_struct_has_all_its_fields_and_no_other() -> None:
    """A forgotten field would silently be 0, and a number that is too large would be cut off."""
    with pytest.raises(ValueError, match="cannot be made of"):
        struct_of(PAIR, {"count": 1})
    with pytest.raises(ValueError, match="cannot be made of"):
        struct_of(PAIR, {"count": 1, "address": 2, "size": 3})
    with pytest.raises(OverflowError):
        struct_of(PAIR, {"count": 2**31, "address": 0})


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.zeros(3, 8, dtype=torch.float16), True),
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 7, dtype=torch.float16), False),
        (torch.zeros(3, 16, dtype=torch.float16)[:, 4:12], False),
        (torch.zeros(3, 16, dtype=torch.float16)[:, 8:], True),
        (torch.zeros(3, 12, dtype=torch.float16)[:, :8], False),
        (torch.zeros(1, 12, dtype=torch.float16)[:, :8], True),
        (torch.zeros(8, 8, dtype=torch.float16).T, False),
        (torch.zeros(1, 1, 8).expand(5, 3, 8), True),
        (torch.zeros(17, dtype=torch.float16)[1:], False),
    ],
)
def test_16_byte_pieces(tensor: Tensor, expected: bool) -> None:
    """The address, the strides of dimensions longer than 1 and the row itself must all be multiples of 16 bytes."""
    assert is_vectorizable(tensor) is expected


def test_why_no_kernel_runs_on_the_cpu() -> None:
    """The reason says what to install only where that would help."""
    obstacle = cuda_obstacle(torch.device("cpu"))

    assert obstacle is not None
    assert "the tensors are on cpu" in obstacle
    if not torch.cuda.is_available():
        assert "cupy" not in obstacle


def test_where_cupy_is_missing_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test pretends that the machine has a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    launch._cupy_obstacle.cache_clear()
    try:
        assert "pip install 'bandrank[gpu]'" in (cuda_obstacle(torch.device("cpu")) or "")
    finally:
        launch._cupy_obstacle.cache_clear()
