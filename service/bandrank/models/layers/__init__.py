"""Layers that encoders and architectures are composed of."""
