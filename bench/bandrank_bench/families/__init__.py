"""Side by side at the sizes of published re-rankers outside the BERT family, with random weights."""
