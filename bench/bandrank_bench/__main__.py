"""`python -m bandrank_bench COMMAND [options]`; `COMMAND --help` lists the options of each.

cpu           side by side with other runtimes on one checkpoint: docs/benchmarks.md
profile       where the time of a request goes, by operator: docs/benchmarks-profile.md
families      side by side at the sizes of XLM-R-base, ModernBERT-base and Qwen3-0.6B: docs/benchmarks-families.md
int8          what int8 does to a ranking, bandrank's and ONNX Runtime's: docs/benchmarks-int8.md
precomputed   scorers whose candidates are cached, beside the cross-encoder: docs/benchmarks-precomputed.md
cascade       quality and cost of a cascade, by its depth: docs/benchmarks-cascade.md
dialects      what each wire format costs, compared with our own: docs/benchmarks-dialects.md
host          what the host does for a request on a GPU, timed without one: docs/benchmarks-host.md
services      compared with infinity and TEI over HTTP, with many clients: docs/benchmarks-services.md
overload      goodput, latency and refusals beyond capacity: the section on overload of docs/operations.md
fine-tuning   what `fine-tune` gains by the number of judged queries: docs/fine-tuning.md
reproduction  systems trained alike, compared on test splits that no training saw: docs/reproduction-*.md
registers     registers and spilled bytes of every CUDA kernel, without a GPU: kernels/results/registers.json
gpu           everything that needs a GPU, correctness before speed: kernels/results
"""

import os
import sys
from importlib import import_module

COMMANDS = {
    "cpu": "bandrank_bench.cpu.side_by_side",
    "profile": "bandrank_bench.profile",
    "families": "bandrank_bench.families.command",
    "int8": "bandrank_bench.int8",
    "precomputed": "bandrank_bench.precomputed",
    "cascade": "bandrank_bench.cascade",
    "dialects": "bandrank_bench.dialects",
    "host": "bandrank_bench.host",
    "services": "bandrank_bench.services.command",
    "overload": "bandrank_bench.overload.command",
    "fine-tuning": "bandrank_bench.fine_tuning",
    "reproduction": "bandrank_bench.reproduction",
    "registers": "bandrank_bench.registers",
    "gpu": "bandrank_bench.gpu.check",
}


def main() -> int:
    """Runs a command; returns its exit code. Imports its module only, as each needs libraries that others do not."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command not in COMMANDS:
        print(__doc__, file=sys.stderr)
        return 2
    sys.argv[0] = f"python -m bandrank_bench {command}"  # as its help names it
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as in the service, before torch is loaded
    code: int = import_module(COMMANDS[command]).main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
