"""Protects similarities, which decide the order of candidates, from the lower precision of autocast."""

import torch


def in_float32(device: torch.device) -> torch.autocast:
    """A context in which products are computed in the dtype of their factors."""
    return torch.autocast(device.type, enabled=False)
