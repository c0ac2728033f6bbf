"""The table of encoders: the `kind` that a checkpoint's config.json carries, and the family that it stands for."""

from collections.abc import Callable

from bandrank.models.encoders.bert import bert
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.encoders.protocol import ALL, Encoder

ENCODERS: dict[str, Callable[..., Encoder]] = {"bert": bert}


def build_encoder(config: EncoderConfig) -> Encoder:
    """An encoder of this shape, with random weights."""
    return ENCODERS[config.kind](config)


__all__ = ["ALL", "ENCODERS", "Encoder", "EncoderConfig", "build_encoder"]
