"""Keeps processors awake for a while after work, so that what comes next starts at once, at full speed."""

import ctypes
import logging
import os
import threading
from contextlib import suppress

from bandrank_kernels.native.library import LONG, native, why_no_native

log = logging.getLogger(__name__)


class Awake:
    """A thread for each processor that was asked for, which keeps it busy when no other thread wants it. A
    processor without work would sleep, and a virtual machine's be given away. The threads hold no lock meanwhile.

    for_s: seconds after the last call for a processor until it may sleep.  Raises RuntimeError if `why_not_awake`.
    """

    def __init__(self, for_s: float) -> None:
        if reason := why_not_awake():
            raise RuntimeError(f"processors cannot be kept awake: {reason}")
        self._library = native()
        self._for_ns = round(for_s * 1e9)
        self._until: dict[int, ctypes.c_int64] = {}  # by processor

    def stay(self, processor: int) -> None:
        """Keeps a processor awake from now on; any thread may call it."""
        until = LONG()
        if (known := self._until.setdefault(processor, until)) is until:
            name = f"awake {processor}"
            thread = threading.Thread(target=self._keep, args=(processor, until), name=name, daemon=True)
            with suppress(RuntimeError):  # no more threads, or the process ends: the processor may sleep
                thread.start()
        self._library.awake_for(ctypes.byref(known), self._for_ns)

    def _keep(self, processor: int, until: ctypes.c_int64) -> None:
        try:
            os.sched_setaffinity(0, {processor})
        except OSError:  # it has just gone, or a sandbox refuses
            log.info("processor %d may sleep, because no thread can be bound to it", processor)
        else:
            self._library.keep_awake(ctypes.byref(until))


def why_not_awake() -> str | None:
    """Why processors cannot be kept awake, as a clause; None if they can."""
    if reason := why_no_native():
        return f"the CPU kernels cannot run: {reason}"
    return None if native().has_idle_priority() else "the system refuses threads of idle priority"
