"""Types of arguments of commands."""

import argparse


def positive(text: str) -> int:
    """A whole number from 1. Raises ArgumentTypeError."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number
