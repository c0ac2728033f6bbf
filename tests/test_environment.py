"""What the commands tell torch and oneDNN through the environment."""

import os
import subprocess
import sys


def test_batches_of_ever_new_sizes_do_not_fill_the_memory() -> None:
    """OneDNN keeps a program of half a megabyte for each size that it has computed: of 512 sizes, once told to."""
    computes = """if True:
        import sys, torch
        from pathlib import Path
        from bandrank.__main__ import main
        from bandrank.models.layers.execution import Execution
        from bandrank.models.layers.linear import Linear

        main(["version"])
        layer = Linear(8, 8)
        layer.prepare_for(Execution())

        def resident_kb():
            return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])

        def compute(sizes):
            with torch.inference_mode():
                for rows in sizes:
                    layer(torch.zeros(rows, 8), "gelu")
            return resident_kb()

        print(-compute(range(1, 600)) + compute(range(600, 900)))
    """
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    ran = subprocess.run([sys.executable, "-c", computes], env=environment, capture_output=True, check=True)

    assert int(ran.stdout.split()[-1]) < 32_000
