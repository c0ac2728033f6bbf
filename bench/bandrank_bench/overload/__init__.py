"""What the service does with more requests than it can answer, and what a client notices of another one's flood."""
