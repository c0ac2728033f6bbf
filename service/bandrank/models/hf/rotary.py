"""Rotary positions in config.json."""

from collections.abc import Mapping
from typing import Any

from bandrank.models.hf.model import SUPPORTED
from bandrank.models.layers.positions import Rotary, SlowRotary

KINDS = ("default", "linear", "llama3", "ntk")
OF_LLAMA = ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")


def read_rotary(settings: Mapping[str, Any], head_dim: int) -> Rotary:
    """Reads rotary positions: plain ones, linear interpolation of all pairs or of Llama 3's slow ones, or the NTK-aware
    scaling of GTE's authors, which multiplies the base by the factor, and divides positions by its power 2 / head_dim.

    Raises ValueError for positions of another kind, and for missing numbers.
    """
    # Before and since transformers 5; with both, which people write by hand, the former counts, as in the library.
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS or rope.get("mixed_b") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"rotary positions of {rope} are not supported; {SUPPORTED}")
    base = _positive("rope_theta", rope.get("rope_theta", settings.get("rope_theta")))
    factor = 1.0 if kind == "default" else _positive("factor", rope.get("factor"))
    if kind == "llama3":
        trained, slow, fast = (_positive(name, rope.get(name)) for name in OF_LLAMA)
        return SlowRotary(base, factor, trained=int(trained), slow=slow, fast=fast)
    return Rotary(base * factor, factor ** (2 / head_dim)) if kind == "ntk" else Rotary(base, factor)


def read_bases(saved: Any) -> tuple[float, float]:
    """The bases of plain rotary positions in global layers and in local ones. Raises ValueError for scaled positions.

    saved: a config of transformers.
    """
    in_global, in_local = (saved.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    if scaled := {in_global["rope_type"], in_local["rope_type"]} - {"default"}:
        raise ValueError(f"rotary positions scaled by {', '.join(sorted(scaled))} are not supported; {SUPPORTED}")
    return float(in_global["rope_theta"]), float(in_local["rope_theta"])


def _positive(name: str, value: object) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} of rotary positions must be a number above 0, got {value!r}")
    return float(value)
