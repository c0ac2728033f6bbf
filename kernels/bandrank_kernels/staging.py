"""Transfers batches to a device, each while the batch before is computed.

A comment that begins with @ marks a line in which a test plants a mistake (tests/emulation/README.md).
"""

from collections.abc import Sequence
from itertools import cycle

from torch import Tensor

from bandrank_kernels import transfer
from bandrank_kernels.graphs import GraphDevice


class _Slot:
    """One of two pairs of buffers.

    arrived: the host buffer has been read, and may be written again.  read: the landing buffer has been read.
    """

    def __init__(self, device: GraphDevice, num_bytes: int) -> None:
        self.host = device.host_buffer(num_bytes)
        with device.copying():
            self.landing = device.buffer(num_bytes)
        self.arrived, self.read = device.event(), device.event()


class Staging:
    """Moves a batch's tensors in one transfer to where a graph reads them, without waiting for what runs there.

        host buffer  --copy stream, at once-->  landing buffer  --current stream, in its turn-->  the graph's inputs

    Two pairs of buffers take turns, so that a batch is transferred while the one before is computed; the host waits
    only for the transfer before that, to get its buffer back.
    """

    def __init__(self, device: GraphDevice, num_bytes: int) -> None:
        """num_bytes: `transfer.num_bytes` of the largest batch."""
        self._device, self.num_bytes = device, num_bytes
        self._slots = cycle([_Slot(device, num_bytes) for _ in range(2)])

    def refill(self, tensors: Sequence[Tensor], inputs: Tensor) -> None:
        """Enqueues the transfer of a batch; later work on the current stream sees its tensors in `inputs`.

        tensors: in host memory; they may be changed as soon as this returns.  inputs: (transfer.num_bytes(tensors),)
        uint8 on the device.
        """
        device, slot, size = self._device, next(self._slots), len(inputs)
        slot.arrived.synchronize()  # @host-buffer
        transfer.write(tensors, slot.host[:size])
        with device.copying():
            slot.read.wait()  # @landing-free
            device.copy(slot.landing[:size], slot.host[:size])
            slot.arrived.record()  # @arrival
        slot.arrived.wait()  # @arrived
        device.copy(inputs, slot.landing[:size])
        slot.read.record()  # @landing-read
