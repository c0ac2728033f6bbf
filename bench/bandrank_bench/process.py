"""Readies the process of a benchmark that runs other systems."""

import signal
import sys
import warnings

from transformers.utils.logging import disable_progress_bar


def make_ready() -> None:
    """Ends at SIGTERM only once the services are stopped, and keeps libraries quiet."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a shell's code
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it unannotated
    warnings.simplefilter("ignore")  # exporters warn about the models' code; benchmarks check the scores
