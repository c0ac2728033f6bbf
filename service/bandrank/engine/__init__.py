"""Text in, ranking out; knows no HTTP."""
