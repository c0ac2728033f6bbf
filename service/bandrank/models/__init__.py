"""Scorers (token ids in, scores out), and the step from texts to token ids. No HTTP, no Redis."""
