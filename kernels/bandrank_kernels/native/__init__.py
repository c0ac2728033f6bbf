"""C++ kernels for a CPU: linear layers in int8 and bfloat16, attention, and whole layers of encoders."""
