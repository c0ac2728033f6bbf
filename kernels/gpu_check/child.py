"""One stage in a process of its own: python -m gpu_check.child STAGE FIRST CAP_S FILE. What kills it costs one case."""

import sys
from pathlib import Path

from gpu_check.lab import Lab
from gpu_check.records import Journal
from gpu_check.stage import STAGES, run_stage
from gpu_check.supervise import DEVICE_LOST

if __name__ == "__main__":
    name, first, cap_s, path = sys.argv[1:]
    stage = next(stage for stage in STAGES if stage.name == name)
    whole = run_stage(stage, Lab(dry=False), Journal(Path(path)), cap_s=float(cap_s), first=int(first))
    sys.exit(0 if whole else DEVICE_LOST)
