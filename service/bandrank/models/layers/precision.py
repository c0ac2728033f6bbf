"""Where autocast is not to lower the precision: similarities, on which an order of candidates hangs."""

import torch


def in_float32(device: torch.device) -> torch.autocast:
    """A context in which products are computed in the dtype of their factors."""
    return torch.autocast(device.type, enabled=False)
