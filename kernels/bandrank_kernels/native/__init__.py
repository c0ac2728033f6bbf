"""Kernels in C++ for a CPU: int8 linear layers, BERT's block behind attention, and windowed attention."""
