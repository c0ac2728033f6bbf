"""Argument types of the commands."""

import argparse
import math


def positive(text: str) -> int:
    """Parses an integer of at least 1. Raises ArgumentTypeError."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def share(text: str) -> float:
    """Parses a finite number of at least 0. Raises ArgumentTypeError."""
    if not 0 <= (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"must be at least 0 and finite, got {number}")
    return number
