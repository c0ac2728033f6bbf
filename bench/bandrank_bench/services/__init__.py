"""Re-ranking services beside each other, over HTTP, with many clients at once."""
