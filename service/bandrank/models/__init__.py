"""Scorers, token ids in, scores out, and the way from texts to token ids. No HTTP, no Redis."""
