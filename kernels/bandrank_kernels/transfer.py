"""Many small tensors from the host to a device in one copy that nobody waits for."""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes, the widest load of a kernel


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies of tensors in host memory, which share one allocation on `device`.

    They are laid out in one pinned buffer, which goes over in one transfer on the current stream; torch keeps the
    buffer until that is done. Each has its own shape and dtype and starts at a multiple of ALIGNMENT bytes.
    Raises ValueError if one is not in host memory.
    """
    starts, size = [], 0
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"only tensors in host memory are copied together, got one on {tensor.device}")
        starts.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    staging = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for start, tensor in zip(starts, tensors, strict=True):
        _part(staging, start, tensor).copy_(tensor)
    copied = staging.to(device, non_blocking=True)
    return [_part(copied, start, tensor) for start, tensor in zip(starts, tensors, strict=True)]


def _part(buffer: Tensor, start: int, like: Tensor) -> Tensor:
    """The bytes from `start`, with the shape and dtype of `like`."""
    return buffer[start : start + like.nbytes].view(like.dtype).view(like.shape)
