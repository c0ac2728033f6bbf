"""Transfers batches to a device; one is laid out while those before are transferred and computed.

In lines marked with @, tests plant mistakes (tests/emulation/README.md).
"""

from collections.abc import Sequence
from itertools import cycle

from torch import Tensor

from bandrank_kernels import transfer
from bandrank_kernels.graphs import GraphDevice


class Staging:
    """Moves a batch's tensors in one transfer to where a graph reads them, in its turn on the current stream.

    Two host buffers take turns, each with an event recorded when it has been read: the host waits only for the transfer
    before the last one. A transfer beside the computation of the batch before, on a stream of its own, would need
    another buffer on the device, a copy and four more calls of the driver, which take the host longer than the transfer
    takes the device.
    """

    def __init__(self, device: GraphDevice, num_bytes: int) -> None:
        """num_bytes: `transfer.num_bytes` of the largest batch."""
        self._device = device
        self._slots = cycle([(device.host_buffer(num_bytes), device.event()) for _ in range(2)])

    def refill(self, tensors: Sequence[Tensor], inputs: Tensor, like: Sequence[Tensor]) -> None:
        """Enqueues the transfer of a batch; later work on the current stream sees its tensors in `inputs`.

        tensors: in host memory; they may be changed as soon as this returns.  inputs: uint8 on the device, of
        `transfer.num_bytes(like)`.  like: as in `transfer.write`.
        """
        host, read = next(self._slots)
        read.synchronize()  # @host-buffer
        used = transfer.write(tensors, host, like)
        self._device.copy(inputs[:used], host[:used])
        read.record()  # @host-read
