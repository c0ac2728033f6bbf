"""CuPy RawKernels on torch tensors, without copies, allocations or synchronisation.

A kernel takes one argument, a C struct by value, laid out by a NumPy structured dtype of the same fields. Addresses in
it are `tensor.data_ptr()`; outputs were allocated by torch, so that CuPy's memory pool never competes with torch's. It
runs on torch's current stream, and so inside `torch.cuda.graph` too, once the same kernel has been launched in the same
thread before: loading a module cannot be captured. CUDA's limits are checked in Python, before the launch.

This is the only file that imports cupy, the first time a kernel may be needed.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bandrank_kernels.cuda.driver import early_launch

MAX_GRID = 2**31 - 1  # blocks along x
MAX_BLOCK_THREADS = 1024
DEFAULT_SHARED_BYTES = 48 * 1024  # more must be requested, function by function
VECTOR_BYTES = 16  # the widest load and store
OLDEST_CAPABILITY = (7, 5)  # the oldest that the compiler of CUDA 13 supports
TENSOR_CORES = (8, 0)  # compute capability from which m16n8k16 and bfloat16 are there
EARLY_CAPABILITY = (9, 0)  # compute capability from which a launch can begin while the one before it ends

INSTALL = "pip install 'bandrank[gpu]'"

Struct = npt.NDArray[np.void]


def cuda_obstacle(device: torch.device) -> str | None:
    """Why none of our CUDA kernels can run on tensors of `device`, and what to do about it; None if one can."""
    missing = _cupy_obstacle() if torch.cuda.is_available() else None
    return "; ".join(filter(None, (gpu_obstacle(device), missing))) or None


def gpu_obstacle(device: torch.device) -> str | None:
    """Why nothing can run on a GPU for tensors of `device`; None if it can."""
    obstacles = []
    if not torch.cuda.is_available():
        obstacles.append("torch sees no GPU")
    if device.type != "cuda":
        obstacles.append(f"the tensors are on {device}")
    elif device_capability(device) < OLDEST_CAPABILITY:
        obstacles.append("the GPU is older than compute capability {}.{}".format(*OLDEST_CAPABILITY))
    return "; ".join(obstacles) or None


@functools.cache
def device_capability(device: torch.device) -> tuple[int, int]:
    """The compute capability, such as (8, 0)."""
    return torch.cuda.get_device_capability(device)


@functools.cache
def _cupy_obstacle() -> str | None:
    try:
        cupy = _import_cupy()
    except ImportError as error:
        return f"cupy cannot be imported ({error}): {INSTALL}"
    if torch.cuda.is_available() and not cupy.cuda.is_available():
        return "cupy sees no GPU where torch sees one: the driver is older than cupy's CUDA"
    return None


def _import_cupy() -> Any:  # cupy carries no types
    import cupy  # noqa: PLC0415  # an optional dependency, 0.4 s to import

    return cupy


def struct_layout(*, addresses: str, longs: str, ints: str = "", floats: str = "") -> np.dtype[np.void]:
    """The layout of a C struct of pointers, 64-bit integers, 32-bit integers and floats, in this order. Each argument
    names its fields, with blanks between them.
    """
    kinds = ((addresses, np.uint64), (longs, np.int64), (ints, np.int32), (floats, np.float32))
    return np.dtype(
        [(name, kind) for names, kind in kinds for name in names.split()], align=True
    )  # as a C compiler does


def struct_of(layout: np.dtype[np.void], values: Mapping[str, object]) -> tuple[Struct, list[torch.Tensor]]:
    """One struct of `layout` with these values, in an array of one, which cupy passes by value; and the tensors among
    the values.

    A tensor stands for its address, None for the null pointer.
    Raises ValueError if fields are missing or unknown, OverflowError if a value does not fit its field.
    """
    names = layout.names or ()
    if values.keys() != set(names):
        raise ValueError(f"a struct of {names} cannot be made of {tuple(values)}")
    fields: list[object] = []
    tensors: list[torch.Tensor] = []
    for name in names:
        value = values[name]
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            value = value.data_ptr()
        fields.append(0 if value is None else value)
    struct = np.zeros(1, layout)
    struct[0] = tuple(fields)  # field by field takes ten times as long
    return struct, tensors


def is_vectorizable(tensor: torch.Tensor) -> bool:
    """Whether each run along the tensor's last dimension is whole 16-byte pieces at 16-byte addresses."""
    size = tensor.element_size()
    if tensor.is_contiguous():  # nearly always, and seen much faster
        return tensor.data_ptr() % VECTOR_BYTES == 0 and tensor.shape[-1] * size % VECTOR_BYTES == 0
    steps = [stride for length, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if length > 1]
    apart = [tensor.data_ptr(), tensor.shape[-1] * size, *(step * size for step in steps)]
    return tensor.stride(-1) == 1 and all(step % VECTOR_BYTES == 0 for step in apart)


def in_pieces(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it that is vectorizable if its runs are whole 16-byte pieces."""
    if tensor.is_contiguous() and tensor.data_ptr() % VECTOR_BYTES == 0:  # nearly always; a copy would lie no better
        return tensor
    return tensor if is_vectorizable(tensor) else tensor.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class Kernel:
    """One kernel of one source: `expression` names it, template arguments and all.

    Kernels are compiled one by one, when first launched on a device, in a fraction of a second each; cupy keeps the
    machine code in its cache folder.
    """

    source: str
    expression: str

    @property
    def is_early(self) -> bool:
        """Whether its launches may begin while the one before ends, because it waits for that itself."""
        return "\n  wait_for_earlier_launches();" in self.source

    def __repr__(self) -> str:
        return f"Kernel({self.expression})"


@dataclass(frozen=True, eq=False)
class Launch:
    """A planned launch: blocks along x, threads of a block, the struct, bytes of dynamic shared memory.

    holds: the tensors behind the struct's addresses, some of which may be copies without another owner.
    """

    kernel: Kernel
    blocks: int
    threads: int
    params: Struct
    shared_bytes: int = 0
    holds: tuple[torch.Tensor, ...] = ()

    def check(self, max_shared_bytes: int) -> None:
        """Raises ValueError if CUDA would refuse the launch. max_shared_bytes: the most that a block may have."""
        name = self.kernel.expression
        if not 1 <= self.blocks <= MAX_GRID:
            raise ValueError(f"{name}: blocks must be within 1..{MAX_GRID}, got {self.blocks}")
        if not 1 <= self.threads <= MAX_BLOCK_THREADS:
            raise ValueError(f"{name}: threads must be within 1..{MAX_BLOCK_THREADS}, got {self.threads}")
        if not 0 <= self.shared_bytes <= max_shared_bytes:
            raise ValueError(
                f"{name}: a block can have {max_shared_bytes} bytes of shared memory on this device, "
                f"got {self.shared_bytes}"
            )
        if self.params.shape != (1,):
            raise ValueError(f"{name}: params must be one struct, got {self.params.shape}")

    def call(self, function: Callable[..., None], stream: int) -> None:
        """Hands the launch to a `cupy.cuda.Function`, for the CUDA stream at address `stream`."""
        function((self.blocks,), (self.threads,), (self.params,), shared_mem=self.shared_bytes, stream=_Stream(stream))

    def call_early(self, function: int, stream: int) -> None:
        """The same for the CUfunction at this address, which may begin while the launch before it ends."""
        sizes = {"blocks": self.blocks, "threads": self.threads, "shared_bytes": self.shared_bytes}
        early_launch(function, stream, self.params.ctypes.data, **sizes)


def plan_launch(
    kernel: Kernel,
    *,
    blocks: int,
    threads: int,
    layout: np.dtype[np.void],
    shared_bytes: int = 0,
    holds: Sequence[torch.Tensor] = (),
    **values: object,
) -> Launch:
    """A launch with one struct of `layout`, whose values are those of `struct_of`; it holds the tensors among them, and
    those of `holds`.
    """
    struct, tensors = struct_of(layout, values)
    return Launch(kernel, blocks, threads, struct, shared_bytes, (*holds, *tensors))


class _Stream:
    """The only attribute of a stream that cupy reads."""

    __slots__ = ("ptr",)

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


@contextmanager
def _current(device: torch.device) -> Iterator[None]:
    """Makes `device` the current one of torch and of cupy, which may use separate CUDA runtimes."""
    with torch.cuda.device(device), _import_cupy().cuda.Device(device.index):
        yield


class _LoadedKernel:
    """A kernel's handle on one device."""

    def __init__(self, kernel: Kernel, device: torch.device) -> None:
        cupy = _import_cupy()
        with _current(device):
            module = cupy.RawModule(code=kernel.source, options=("-std=c++17",), name_expressions=(kernel.expression,))
            self._raw = module.get_function(kernel.expression)
            self.function = self._raw.kernel  # looked up once: RawKernel.__call__ looks it up at each launch
        begins_early = kernel.is_early and device_capability(device) >= EARLY_CAPABILITY
        self.early = int(self.function.ptr) if begins_early else None
        self.current_device: Callable[[], int] = cupy.cuda.runtime.getDevice
        properties = torch.cuda.get_device_properties(device)
        self.max_shared_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in the stub
        self._device = device
        self._allowed_bytes = DEFAULT_SHARED_BYTES

    def enqueue(self, request: Launch, stream: int) -> None:
        """Enqueues a launch on the stream at this address, of the current device."""
        if self.early is None:
            request.call(self.function, stream)
        else:
            request.call_early(self.early, stream)

    def allow(self, shared_bytes: int) -> None:
        """Raises the limit on dynamic shared memory once. This cannot be captured, so a warm-up must come first."""
        if shared_bytes > self._allowed_bytes:
            with _loading:  # of two threads that raise it, the one with the lower limit may come last
                if shared_bytes > self._allowed_bytes:
                    with _current(self._device):
                        self._raw.max_dynamic_shared_size_bytes = shared_bytes
                    self._allowed_bytes = shared_bytes

    @property
    def resources(self) -> dict[str, int]:
        """What the kernel takes, says the driver: registers and spilled bytes per thread, shared bytes per block."""
        raw = self._raw
        return {
            "registers": raw.num_regs,
            "spilled_bytes": raw.local_size_bytes,
            "static_shared_bytes": raw.shared_size_bytes,
        }


_loaded: dict[tuple[Kernel, int], _LoadedKernel] = {}
_loading = threading.Lock()


def load(kernel: Kernel, device: torch.device) -> _LoadedKernel:
    """The kernel's handle on `device`, compiled when it is first used there."""
    loaded = _loaded.get((kernel, device.index))
    if loaded is None:
        with _loading:  # two threads may both launch it first
            loaded = _loaded.get((kernel, device.index)) or _LoadedKernel(kernel, device)
            _loaded[kernel, device.index] = loaded
    return loaded


def launch(request: Launch, device: torch.device) -> None:
    """Enqueues a launch on torch's current stream of `device`; returns at once.

    The tensors that the request holds may be freed as soon as this returns: torch reuses their memory only on the same
    stream, after this kernel. Raises ValueError if CUDA would refuse the launch.
    """
    assert device.index is not None, "a tensor's device has an index. This is a bug."
    kernel = load(request.kernel, device)
    request.check(kernel.max_shared_bytes)
    kernel.allow(request.shared_bytes)
    stream: int = torch._C._cuda_getCurrentRawStream(device.index)  # an object of torch's takes ten times as long
    if torch.cuda.current_device() == device.index == kernel.current_device():
        kernel.enqueue(request, stream)
    else:
        with _current(device):
            kernel.enqueue(request, stream)
