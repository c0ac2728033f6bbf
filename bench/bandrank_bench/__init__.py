"""Benchmarks of bandrank: above the service, and not installed with it."""
