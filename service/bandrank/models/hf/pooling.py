"""Pooling modules of sentence-transformers."""

from collections.abc import Mapping
from typing import Any

from bandrank.models.layers.pooling import Pooling

POOLINGS: dict[str, Pooling] = {  # by the names of sentence-transformers
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
SWITCHES = {  # before sentence-transformers 6
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(settings: Mapping[str, Any]) -> Pooling:
    """The mode in a module's settings: its name or its switch; with neither it is the mean, as in the library.

    Raises ValueError for several modes and for an unknown one.
    """
    named = settings.get("pooling_mode", [mode for switch, mode in SWITCHES.items() if settings.get(switch)])
    modes = (list(named) or ["mean"]) if isinstance(named, list) else [named]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(f"pooling {modes} is not supported, only one of {', '.join(POOLINGS)}")
    return POOLINGS[modes[0]]
