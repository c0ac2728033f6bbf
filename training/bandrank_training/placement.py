"""The device and the dtype with which commands score."""

import argparse
from dataclasses import dataclass
from typing import Self

import torch

from bandrank.models.placement import DTYPES, usable_device


@dataclass(frozen=True)
class Placement:
    """A device, and the dtype of weights and activations on it."""

    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declares --device and --dtype."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        parser.add_argument(
            "--device", type=_device, default=device, help=f"cpu, cuda, cuda:1, ... (default: {device})"
        )
        parser.add_argument(
            "--dtype",
            choices=DTYPES,
            default="float32",
            help="of weights and activations; bfloat16 is faster if the processor supports it, int8 on a CPU "
            "(default: float32)",
        )

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """The placement that the arguments name."""
        return cls(args.device, DTYPES[args.dtype])


CPU = Placement(torch.device("cpu"), torch.float32)


def _device(text: str) -> torch.device:
    try:
        return usable_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {error}") from error
