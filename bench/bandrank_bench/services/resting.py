"""Suspends services while another is measured, so that their threads take no processor time."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from bandrank_bench.service import Service


@contextmanager
def resting(service: Service) -> Iterator[None]:
    """Suspends the service, except in blocks of `awake`. A service on another machine keeps running."""
    _signal(service, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(service, signal.SIGCONT)


@contextmanager
def awake(service: Service) -> Iterator[None]:
    """Lets the service run until the end of the block."""
    _signal(service, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(service, signal.SIGSTOP)


def _signal(service: Service, number: signal.Signals) -> None:
    if service.pid is not None:
        os.kill(service.pid, number)
