"""The devices and dtypes that scorers use."""

from typing import get_args

import torch

from bandrank.dtypes import DtypeName

DTYPES: dict[DtypeName, torch.dtype] = {name: getattr(torch, name) for name in get_args(DtypeName)}


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, as settings spell it."""
    return str(dtype).removeprefix("torch.")


def usable_device(name: str) -> torch.device:
    """The device of this name ("cpu", "cuda", "cuda:1", ...).

    Raises ValueError, with torch's reason, if there is no such device.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
        raise ValueError(str(error).splitlines()[0]) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU or the host ran out of memory; torch has no error class for the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)


def is_lost(device: torch.device) -> bool:
    """Whether this process can no longer use a GPU: after some errors, such as an illegal address, CUDA fails every
    later call.
    """
    try:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
