"""Work beside other work on a GPU, in CUDA graphs too, where one launch leaves most of the card idle."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Branch:
    """A stream beside the current one; without a GPU its work is done in its turn.

    Tensors that cross are kept until the two streams have met again, at a wait or a fork.
    """

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]  # torch leaves it bare

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Gives the work inside to the branch, behind all that the current stream has been given."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Callable[[], None]:
        """A call that makes the current stream wait for all that the branch has been given by now."""
        return (lambda: None) if self._stream is None else self._stream.record_event().wait


IN_TURN = Branch(torch.device("cpu"))
