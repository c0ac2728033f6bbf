"""Texts in, rankings out; knows no HTTP."""
