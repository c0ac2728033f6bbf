"""Side by side: bandrank and other runtimes on one checkpoint."""
