"""Everything that needs a GPU, in one run of under ten minutes: correctness, then speed."""
