"""What the fused operation is timed against, each in the layout that suits it best."""
