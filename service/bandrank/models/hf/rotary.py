"""Rotary positions in config.json."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from bandrank.models.hf.model import SUPPORTED
from bandrank.models.layers.positions import Rotary, SlowRotary, YarnRotary

LAYERS = GLOBAL, LOCAL = "full_attention", "sliding_attention"
KINDS = ("default", "linear", "llama3", "ntk", "yarn")
PLAIN = {"mixed_b": None, "truncate": True, "partial_rotary_factor": 1.0}
LENGTH = "original_max_position_embeddings"
OF_LLAMA = (LENGTH, "low_freq_factor", "high_freq_factor")
OF_YARN = {"beta_slow": 1.0, "beta_fast": 32.0}
OF_DEEPSEEK = ("mscale", "mscale_all_dim")  # which count only together
Saved = TypeVar("Saved")


def read_saved(read: Callable[[dict[str, Any]], Saved], settings: dict[str, Any]) -> Saved:
    """The settings as the library reads them. Raises ValueError for rotary positions without their numbers."""
    try:
        return read(settings)
    except KeyError as error:
        raise ValueError(f"config.json: {error.args[0]}") from error


def read_rotary(settings: Mapping[str, Any], head_dim: int) -> Rotary:
    """Reads rotary positions: plain ones, linear interpolation of all pairs or of Llama 3's slow ones, YaRN, or the
    NTK-aware scaling of GTE's authors, which multiplies the base by the factor, and divides positions by its power
    2 / head_dim.

    Raises ValueError for positions of another kind, and for missing numbers.
    """
    # Before and since transformers 5; with both, which people write by hand, the former counts, as in the library.
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS or any(rope.get(name) not in (plain, None) for name, plain in PLAIN.items()):
        raise ValueError(f"rotary positions of {rope} are not supported; {SUPPORTED}")
    base = _positive("rope_theta", rope.get("rope_theta", settings.get("rope_theta")))
    factor = 1.0 if kind == "default" else _positive("factor", rope.get("factor"))
    if kind == "llama3":
        trained, slow, fast = (_positive(name, rope.get(name)) for name in OF_LLAMA)
        return SlowRotary(base, factor, trained=int(trained), slow=slow, fast=fast)
    if kind == "yarn":
        # Some configs name them beside the other numbers, and where nobody does, the library takes the longest text.
        lengths = (settings.get(LENGTH), rope.get(LENGTH), settings.get("max_position_embeddings"))
        trained = _positive(LENGTH, next(filter(None, lengths), None))
        slow, fast = (_positive(name, rope.get(name) or default) for name, default in OF_YARN.items())
        growth = 0.1 * math.log(max(factor, 1.0))
        whole, part = (rope.get(name) for name in OF_DEEPSEEK)
        default = (1 + growth * whole) / (1 + growth * part) if whole and part else 1 + growth
        scale = _positive("attention_factor", rope.get("attention_factor") or default)
        return YarnRotary(base, factor, trained=int(trained), slow=slow, fast=fast, attention_factor=scale)
    return Rotary(base * factor, factor ** (2 / head_dim)) if kind == "ntk" else Rotary(base, factor)


def read_layers(layer_types: Sequence[str] | None, rope: Any, window: int) -> dict[str, Any]:
    """The windows of layers, and the positions in global and in local ones, as fields of a config.

    rope: settings of positions by the type of layers.  window: of local layers, in tokens on each side.
    Raises ValueError for layers and positions of other kinds.
    """
    if {*(layer_types or [""])} - {*LAYERS}:
        raise ValueError(f"layers of types {layer_types} are not supported; {SUPPORTED}")
    whole, local = (read_rotary({"rope_parameters": rope.get(kind)}, 0) for kind in LAYERS)
    windows = tuple(window if kind == LOCAL else None for kind in layer_types or ())
    return {"windows": windows, "global_rotary": whole, "local_rotary": local}


def _positive(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} of rotary positions must be a number above 0, got {value!r}")
    return float(value)
