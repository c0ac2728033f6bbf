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


def read_poolings(settings: Mapping[str, Any]) -> tuple[Pooling, ...]:
    """The modes in a module's settings, whose vectors are joined: their names or switches; with none it is the mean, as
    in the library.

    Raises ValueError for an unknown mode.
    """
    named = settings.get("pooling_mode", [mode for switch, mode in SWITCHES.items() if settings.get(switch)])
    modes = (list(named) or ["mean"]) if isinstance(named, list) else [named]
    if not {*modes} <= POOLINGS.keys():
        raise ValueError(f"pooling {modes} is not supported, only {', '.join(POOLINGS)}")
    return tuple(POOLINGS[mode] for mode in modes)
