"""Benchmarks of bandrank: above the service, not part of what is installed."""
