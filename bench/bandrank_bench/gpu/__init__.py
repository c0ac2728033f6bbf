"""Everything that needs a GPU, in one command of under ten minutes: `make gpu-check`. Correctness first, then speed."""
