"""bandrank: an online re-ranking microservice."""

__version__ = "0.1.0"
