"""Encoders: what architectures ask of any (protocol.py), and the families of them (families.py)."""
