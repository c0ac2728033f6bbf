"""Translates the tensors of an encoder's layers from the names under which its family saves them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.hf.files import Weights


@dataclass(frozen=True)
class LayerNames:
    """The saved names of a layer's parts.

    layer: the prefix of a layer's number.  parts: saved names by ours, without `.weight` and `.bias`; a tuple if a part
    of ours is saved as several, which are stacked.
    """

    layer: str
    parts: Mapping[str, str | tuple[str, ...]]


def layer_weights(weights: Weights, config: EncoderConfig, names: LayerNames) -> Weights:
    """The tensors of all layers under our names: each part's weight, and its bias if it has one.

    Raises KeyError for a missing tensor, and ValueError if there are more layers than config.json says.
    """
    numbered = re.compile(re.escape(names.layer) + r"\.(\d+)\.(.+)")
    found = [match for name in weights if (match := numbered.fullmatch(name))]
    if (deepest := max((int(match[1]) for match in found), default=-1)) >= config.num_layers:
        raise ValueError(f"config.json names {config.num_layers} layers, the weights have {deepest + 1}")
    of_any_layer = {match[2] for match in found}
    translated = {}
    for ours, theirs in names.parts.items():
        stacked = (theirs,) if isinstance(theirs, str) else theirs
        has_bias = any(f"{name}.bias" in of_any_layer for name in stacked)
        for kind in ("weight", "bias") if has_bias else ("weight",):
            for layer in range(config.num_layers):
                tensors = [weights[f"{names.layer}.{layer}.{name}.{kind}"] for name in stacked]
                translated[f"encoder.layers.{layer}.{ours}.{kind}"] = torch.cat(tensors) if tensors[1:] else tensors[0]
    return translated


def gates_first(translated: Weights) -> Weights:
    """The tensors with the halves of gated units' first layers swapped, for families that save the gate last."""
    return {
        name: torch.cat([*reversed(tensor.chunk(2))]) if name.endswith(".up.weight") else tensor
        for name, tensor in translated.items()
    }
