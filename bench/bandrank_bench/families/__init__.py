"""Side by side at the sizes of published re-rankers of other families than BERT, with random weights."""
