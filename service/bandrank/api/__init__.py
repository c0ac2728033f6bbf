"""HTTP only: requests in, the engine's rankings out."""
