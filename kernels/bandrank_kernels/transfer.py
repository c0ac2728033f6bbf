"""Copies of tensors between the host and a device, awaited only when they are needed."""

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, the widest load of a kernel


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies tensors in host memory to one allocation on `device`, in one transfer.

    They are laid out in one pinned buffer, which is copied on the current stream; torch keeps it until then. Each has
    its own shape and dtype and starts at a multiple of ALIGNMENT bytes.
    Raises ValueError if one is not in host memory.
    """
    staging = torch.empty(num_bytes(tensors), dtype=torch.uint8, pin_memory=device.type == "cuda")
    write(tensors, staging)
    return views(staging.to(device, non_blocking=True), tensors)


def to_host(tensor: Tensor) -> Callable[[], Tensor]:
    """Enqueues a copy of a tensor to host memory, and returns a function that waits for it and returns it."""
    if tensor.device.type != "cuda":
        return lambda: tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it bare
    copied.record(torch.cuda.current_stream(tensor.device))

    def arrived() -> Tensor:
        copied.synchronize()
        return host

    return arrived


def num_bytes(tensors: Sequence[Tensor]) -> int:
    """Size of one buffer in which the tensors are laid out."""
    return sum(_room(tensor) for tensor in tensors)


def write(tensors: Sequence[Tensor], buffer: Tensor, like: Sequence[Tensor] = ()) -> int:
    """Lays tensors out in a buffer of bytes, both in host memory, and returns where the last one ends.

    like: tensors as large or larger, for which room is left.  Raises ValueError if a tensor is elsewhere or too large.
    """
    begin = end = 0
    memory, size = buffer.data_ptr(), len(buffer)
    for tensor, room in zip(tensors, map(_room, like or tensors), strict=True):
        if not tensor.is_cpu:
            raise ValueError(f"only tensors in host memory are copied together, got one on {tensor.device}")
        end = begin + tensor.nbytes
        if end > min(begin + room, size):
            raise ValueError(f"{tensor.nbytes} bytes do not fit in {room}, or in the buffer of {size}")
        whole = tensor.contiguous()
        # Not by torch, which would wake its threads for a large one, and wait for a core for each of them.
        ctypes.memmove(memory + begin, whole.data_ptr(), whole.nbytes)
        begin += room
    return end


def views(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the tensors that were laid out in a buffer. like: tensors of their shapes and dtypes."""
    return [
        buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for begin, tensor in zip(accumulate(map(_room, like), initial=0), like, strict=False)
    ]


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
