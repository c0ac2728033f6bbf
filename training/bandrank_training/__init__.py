"""Offline training and evaluation of scorers. Nothing in the service imports this package."""
