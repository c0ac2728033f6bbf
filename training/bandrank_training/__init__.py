"""Offline: recipes, losses, the loop, evaluation. Nothing in the service imports this package."""
