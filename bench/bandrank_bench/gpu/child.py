"""One stage in a process of its own: python -m bandrank_bench.gpu.child STAGE FIRST CAP_S FILE. What kills it costs one case."""

import sys
from pathlib import Path

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.records import Journal
from bandrank_bench.gpu.stage import STAGES, run_stage
from bandrank_bench.gpu.supervise import DEVICE_LOST

if __name__ == "__main__":
    name, first, cap_s, path = sys.argv[1:]
    stage = next(stage for stage in STAGES if stage.name == name)
    whole = run_stage(stage, Lab(dry=False), Journal(Path(path)), cap_s=float(cap_s), first=int(first))
    sys.exit(0 if whole else DEVICE_LOST)
