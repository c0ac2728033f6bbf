"""The one rule that says which backend of an operation runs."""

from typing import Literal, get_args

import torch

Backend = Literal["auto", "cuda", "vectorized", "reference"]


class BackendUnavailable(RuntimeError):
    """The backend that was asked for by name cannot run here; the message says why."""


def choose_backend(asked: Backend, device: torch.device) -> Backend:
    """The backend that will run for `asked` on `device`; never a silent fallback.

    "auto" is "vectorized" on every device until the CUDA kernels land; the name returned is for logs and `/metrics`.
    Raises BackendUnavailable if a backend asked for by name cannot run, ValueError for an unknown name.
    """
    match asked:
        case "auto":
            return "vectorized"
        case "vectorized" | "reference":
            return asked
        case "cuda":
            raise BackendUnavailable(
                f"backend 'cuda' has no kernels in this version (tensors on {device}); use 'auto' or 'vectorized'"
            )
    raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {asked!r}")
