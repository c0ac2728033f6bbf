"""C++ kernels for a CPU: int8 linear layers, BERT's block after its attention, and windowed attention."""
