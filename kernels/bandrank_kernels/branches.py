"""Work that runs beside other work on a GPU, in CUDA graphs too: a small launch leaves most of a card idle."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Branch:
    """A stream beside the current one; without a GPU its work is done in its turn.

    Both sides keep what the other reads until they are joined: behind the wait for the branch's last mark, or a fork.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        on_gpu = device is not None and device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it bare

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Moves the work inside to the branch, behind what the current stream has been given so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Callable[[], None]:
        """Returns a call that makes the current stream wait for what the branch has been given so far."""
        return _wait_for_nothing if self._stream is None else self._stream.record_event().wait


def _wait_for_nothing() -> None:
    pass


IN_TURN = Branch()
