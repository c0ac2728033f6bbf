"""Stage 3: compute-sanitizer, which sees what comparing numbers cannot: races, and memory that is not ours."""

import re
from collections.abc import Iterator
from functools import partial

from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.launches import SMALL
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_bench.gpu.tools import TAIL, on_launches

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CAP_S = 45.0


def cases(lab: Lab) -> Iterator[Case]:
    """Each tool on all small launches."""
    for tool in TOOLS:
        yield Case(tool, partial(sanitized, lab, tool))


def sanitized(lab: Lab, tool: str) -> Facts:
    """Raises RuntimeError if the tool finds anything, or did not say that it finds nothing."""
    lab.require_gpu()
    options = ["--tool", tool, "--error-exitcode", "9"]
    if tool == "memcheck":
        options += ["--report-api-errors", "no"]  # torch asks CUDA for functions that it may not have
    said = on_launches("compute-sanitizer", options, [*SMALL], cap_s=CAP_S)
    summaries = re.findall(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+)", said)
    if not summaries or any(int(count) for count in summaries):
        raise RuntimeError(f"{tool} does not say that all is well: {said[-TAIL:]}")
    return {"found": 0}
