"""GPU and CPU operations on plain tensors; this package knows no model."""

from bandrank_kernels.dispatch import Backend, BackendUnavailable, choose_backend

__all__ = ["Backend", "BackendUnavailable", "choose_backend"]
