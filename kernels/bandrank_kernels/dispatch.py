"""The one rule that decides which backend of an operation runs."""

import functools
import logging
from typing import Literal, get_args

import torch

from bandrank_kernels.launch import cuda_obstacle

log = logging.getLogger(__name__)

Backend = Literal["auto", "cuda", "native", "vectorized", "reference"]


class BackendUnavailable(RuntimeError):
    """A backend requested by name cannot run here; the message says why."""


def choose_backend(backend: Backend, device: torch.device, *, unsupported: str | None = None) -> Backend:
    """The backend that runs on `device` when `backend` is requested; there is no silent fallback.

    unsupported: why the operation's CUDA kernels cannot run this call, None if they can. "native" means the CPU
    kernels, or plain torch for an operation that they lack. "auto" is "cuda" if the CUDA kernels can run, else
    "vectorized"; it logs in one line, once per reason, which of the two it is and why.
    Raises BackendUnavailable if a backend requested by name cannot run, ValueError for an unknown name.
    """
    match backend:
        case "auto":
            obstacle = cuda_obstacle(device) or unsupported
            _log_choice(device.type, obstacle)
            return "cuda" if obstacle is None else "vectorized"
        case "cuda":
            obstacle = cuda_obstacle(device) or unsupported
            if obstacle is not None:
                raise BackendUnavailable(f"backend 'cuda' cannot run: {obstacle}; 'auto' and 'vectorized' can")
            return backend
    if backend in get_args(Backend):
        return backend
    raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {backend!r}")


@functools.cache
def _log_choice(device_type: str, obstacle: str | None) -> None:
    """Logs a choice once per process and reason, since every layer of every batch makes it."""
    if obstacle is None:
        log.info("CUDA kernels run")
    elif device_type == "cuda":
        log.warning("plain torch runs on the GPU: %s", obstacle)
    else:
        log.info("CUDA kernels do not run: %s", obstacle)
