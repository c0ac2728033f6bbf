"""Compact weights for shipped checkpoints: float16, and matrices as int8 with a scale for each row."""

from collections.abc import Mapping

from torch import Tensor

from bandrank.models.layers.int8_rows import int8_rows

SCALE = ".row_scale"  # the suffix of the scales' name, after the name of their int8 matrix


class TooLarge(ValueError):
    """A weight that is not finite, or that float16 cannot hold."""


def pack(weights: Mapping[str, Tensor], *, int8: tuple[str, ...]) -> dict[str, Tensor]:
    """Converts matrices whose name contains one of `int8` to int8, and all other weights to float16.

    Raises TooLarge.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and any(part in name for part in int8):
            packed[name], floats = int8_rows(weight)
            packed[name + SCALE] = floats
        else:
            packed[name] = floats = weight.half()
        if not floats.isfinite().all():
            raise TooLarge(f"{name}: not finite, or too large for float16")
    return packed


def unpack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts packed weights, or weights of any float dtype, to float32."""
    return {
        name: weight.float().mul_(weights[name + SCALE].float()[:, None]) if name + SCALE in weights else weight.float()
        for name, weight in weights.items()
        if not name.endswith(SCALE)
    }
