"""Representations of candidates, kept in memory and in Redis, so that no candidate is encoded twice."""
