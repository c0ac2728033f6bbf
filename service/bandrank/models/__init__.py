"""Scorers: tensors of token ids in, scores out. No HTTP, no Redis, no text."""
