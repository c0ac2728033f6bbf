"""CUDA on the CPU, for tests: kernels, launches, streams and graphs without a GPU. See README.md."""
