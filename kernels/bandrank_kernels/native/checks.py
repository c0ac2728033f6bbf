"""Checks of tensors before their addresses go to the kernels, which read and write whatever is there."""

import torch
from torch import Tensor

MAX_HEAD_DIM, HEAD_DIM_MULTIPLE = 512, 16  # of attention


def check(name: str, tensor: Tensor, *shape: int | None, dtype: torch.dtype = torch.float32) -> None:
    """Raises ValueError unless a tensor is in host memory, of this dtype and shape. None: any size."""
    sizes_fit = tensor.dim() == len(shape) and all(
        want is None or size == want for size, want in zip(tensor.shape, shape, strict=True)
    )
    if not sizes_fit or tensor.dtype != dtype or tensor.device.type != "cpu":
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} must be ({wanted}) {dtype} in host memory, got {tuple(tensor.shape)} {tensor.dtype} "
            f"on {tensor.device}"
        )


def why_odd(head_dim: int) -> str | None:
    """Why the kernels cannot attend with heads of this size, as a clause; None if they can."""
    if head_dim % HEAD_DIM_MULTIPLE or not 0 < head_dim <= MAX_HEAD_DIM:
        return f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}, got {head_dim}"
    return None
