"""The page at /, which shows a re-ranking."""
