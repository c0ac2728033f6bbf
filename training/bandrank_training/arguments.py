"""Argument types of the commands."""

import argparse


def positive(text: str) -> int:
    """Parses an integer of at least 1. Raises ArgumentTypeError."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
