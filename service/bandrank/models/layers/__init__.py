"""The bricks of the architectures."""
