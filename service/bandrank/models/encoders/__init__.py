"""Encoders: the interface that architectures use (protocol.py), and its families (families.py)."""
