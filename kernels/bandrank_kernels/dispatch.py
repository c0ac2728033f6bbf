"""The one rule that says which backend of an operation runs."""

import functools
import logging
from typing import Literal, get_args

import torch

from bandrank_kernels.launch import cuda_obstacle

log = logging.getLogger(__name__)

Backend = Literal["auto", "cuda", "vectorized", "reference"]


class BackendUnavailable(RuntimeError):
    """The backend that was asked for by name cannot run here; the message says why."""


def choose_backend(asked: Backend, device: torch.device, *, unsupported: str | None = None) -> Backend:
    """The backend that will run for `asked` on `device`; never a silent fallback.

    unsupported: why the operation's CUDA kernels cannot compute what is asked, None if they can. "auto" is "cuda" where
    they can run and "vectorized" elsewhere, and logs in one line, once per reason, which of the two it is and why.
    Raises BackendUnavailable if a backend asked for by name cannot run, ValueError for an unknown name.
    """
    match asked:
        case "auto":
            obstacle = cuda_obstacle(device) or unsupported
            _log_choice(device.type, obstacle)
            return "cuda" if obstacle is None else "vectorized"
        case "vectorized" | "reference":
            return asked
        case "cuda":
            obstacle = cuda_obstacle(device) or unsupported
            if obstacle is not None:
                raise BackendUnavailable(f"backend 'cuda' cannot run: {obstacle}; 'auto' and 'vectorized' can")
            return asked
    raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {asked!r}")


@functools.cache
def _log_choice(device_type: str, obstacle: str | None) -> None:
    """Once per process and reason: what happens in every layer of every batch is no event."""
    if obstacle is None:
        log.info("CUDA kernels run")
    elif device_type == "cuda":
        log.warning("plain torch runs on the GPU: %s", obstacle)
    else:
        log.info("plain torch runs: %s", obstacle)
