"""Re-ranking services compared over HTTP, with many clients at once."""
