"""Services that are stopped while another one is measured, so that none of their threads takes a processor."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from bandrank_bench.service import Service


@contextmanager
def resting(service: Service) -> Iterator[None]:
    """The service is stopped, except in blocks of `awake`; one that is not on this machine goes on."""
    _signal(service, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(service, signal.SIGCONT)


@contextmanager
def awake(service: Service) -> Iterator[None]:
    """The service goes on until the end of the block."""
    _signal(service, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(service, signal.SIGSTOP)


def _signal(service: Service, number: signal.Signals) -> None:
    if service.pid is not None:
        os.kill(service.pid, number)
