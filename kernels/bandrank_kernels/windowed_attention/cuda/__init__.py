"""One layer as CUDA source, and the plan of its launches; all but `plan.py` needs neither a GPU nor CuPy."""
