"""Tensors between the host and a device, in copies that nobody waits for before they are needed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, the widest load of a kernel


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies of tensors in host memory, which share one allocation on `device`.

    They are laid out in one pinned buffer, which goes over in one transfer on the current stream; torch keeps the
    buffer until that is done. Each has its own shape and dtype and starts at a multiple of ALIGNMENT bytes.
    Raises ValueError if one is not in host memory.
    """
    staging = torch.empty(num_bytes(tensors), dtype=torch.uint8, pin_memory=device.type == "cuda")
    write(tensors, staging)
    return views(staging.to(device, non_blocking=True), tensors)


def to_host(tensor: Tensor) -> Callable[[], Tensor]:
    """Enqueues the copying of a tensor to host memory. What is returned waits for the copy, and gives it."""
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
    """Of the tensors laid out in one buffer."""
    return sum(_room(tensor) for tensor in tensors)


def write(tensors: Sequence[Tensor], buffer: Tensor) -> None:
    """Lays tensors in host memory out in a buffer of bytes there. Raises ValueError if one is elsewhere."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"only tensors in host memory are copied together, got one on {tensor.device}")
    for view, tensor in zip(views(buffer, tensors), tensors, strict=True):
        view.copy_(tensor)


def views(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What lies in a buffer where tensors of the same shapes and dtypes were laid out."""
    starts, start = [], 0
    for tensor in like:
        starts.append(start)
        start += _room(tensor)
    return [
        buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for begin, tensor in zip(starts, like, strict=True)
    ]


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
