"""The page at /: a re-ranking that one can look at."""
