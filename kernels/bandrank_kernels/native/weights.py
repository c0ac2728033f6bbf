"""Weights of linear layers as the CPU kernels take them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bandrank_kernels.native.checks import check
from bandrank_kernels.native.library import SplitStruct, WeightsStruct, native

MULTIPLE = 16  # inputs of a layer and numbers of a row are multiples of this: a whole register of any variant
MOST_BYTES = 1 << 16  # of a row: their products always add up to less than 2^31


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs of a layer that are kept in several bytes each, because they are much larger than the others.

    An input in m bytes makes the steps of its row no coarser than one of an m-th of its size, and is itself rounded to
    these finer steps (outlier channel splitting, Zhao et al. 2019, arXiv 1901.09504).

    sources: (copies,) int32, the input of each byte after the first ones.  shares: (inputs + copies,) float32, 1 / m
    of each byte.  offsets: the same shape, (1/2 + j) / m of the j-th byte of an input.
    """

    sources: Tensor
    shares: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, num_bytes: Tensor) -> "Split":
        """num_bytes: (inputs,) int64, at least 1 each. Raises ValueError unless the copies fill whole registers."""
        inputs = torch.arange(len(num_bytes))
        sources = inputs.repeat_interleave(num_bytes - 1)
        if len(sources) % MULTIPLE:
            raise ValueError(f"the copies of inputs have to be a multiple of {MULTIPLE}, got {len(sources)}")
        shares = 1 / num_bytes[torch.cat([inputs, sources])].float()
        earlier = (num_bytes - 1).cumsum(0) - (num_bytes - 1)  # copies of the inputs before
        index = torch.cat([torch.zeros_like(inputs), torch.arange(len(sources)) - earlier[sources] + 1])
        return cls(sources.int(), shares, (0.5 + index) * shares)

    def struct(self) -> SplitStruct:
        """The kernels' argument; valid as long as this object."""
        return SplitStruct(len(self.sources), *(each.data_ptr() for each in (self.sources, self.shares, self.offsets)))


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """The weights of a linear layer packed for the kernels: bytes with a scale for each output, or bfloat16 numbers.

    panels: int8, (padded outputs * padded bytes of a row,).  scales, bias: (padded outputs,) float32.  sums: the same
    shape, int32, of the bytes of each output.  split: of the inputs, or None.
    bfloat16: whether weights and inputs are bfloat16 numbers, for which scales and sums are not used.
    """

    outputs: int
    inputs: int
    panels: Tensor
    scales: Tensor
    sums: Tensor
    bias: Tensor
    split: Split | None = None
    bfloat16: bool = False

    @classmethod
    def pack(cls, rows: Tensor, scales: Tensor, bias: Tensor | None, split: Split | None = None) -> "PackedWeights":
        """Packs (outputs, inputs) int8 rows, their (outputs,) scales, and any (outputs,) bias.

        Raises ValueError for other tensors and unsupported sizes.
        """
        check("rows", rows, None, None, dtype=torch.int8)
        outputs, inputs = rows.shape
        check("scales", scales, outputs)
        _check_layer(rows, bias)
        if split is not None:
            check("the shares of a split", split.shares, inputs + len(split.sources))
        rows = rows.contiguous() if split is None else torch.cat([rows, rows[:, split.sources]], 1)
        if rows.shape[1] > MOST_BYTES:
            raise ValueError(f"a layer can have {MOST_BYTES} bytes of inputs, got {rows.shape[1]}")
        panels, sums = _panels(rows, native().depth)
        padded = len(sums)
        return cls(outputs, inputs, panels, filled(scales, padded), sums, filled(bias, padded), split)

    @classmethod
    def pack_bfloat16(cls, rows: Tensor, bias: Tensor | None) -> "PackedWeights":
        """Packs (outputs, inputs) bfloat16 rows and any (outputs,) bias, if `native().has_bfloat16`.

        Raises ValueError for other tensors and unsupported sizes.
        """
        check("rows", rows, None, None, dtype=torch.bfloat16)
        _check_layer(rows, bias)
        panels, sums = _panels(rows.contiguous().view(torch.int8), native().bfloat16_depth)
        (outputs, inputs), padded = rows.shape, len(sums)
        return cls(outputs, inputs, panels, torch.ones(padded), sums, filled(bias, padded), bfloat16=True)

    @cached_property
    def struct(self) -> WeightsStruct:
        """The kernels' argument; valid as long as this object."""
        split = SplitStruct() if self.split is None else self.split.struct()
        tensors = (self.panels, self.scales, self.sums, self.bias)
        return WeightsStruct(self.outputs, self.inputs, self.bfloat16, split, *(each.data_ptr() for each in tensors))


def _check_layer(rows: Tensor, bias: Tensor | None) -> None:
    outputs, inputs = rows.shape
    if bias is not None:
        check("a bias", bias, outputs)
    if inputs % MULTIPLE:
        raise ValueError(f"a layer needs a multiple of {MULTIPLE} inputs to be packed, got {inputs}")


def _panels(rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The panels of (outputs, bytes) int8 rows, and the sums of bytes. step: the bytes that are multiplied together."""
    padded, num_bytes = native().padded(len(rows)), -(-rows.shape[1] // step) * step
    panels, sums = torch.empty(padded * num_bytes, dtype=torch.int8), torch.empty(padded, dtype=torch.int32)
    native().pack(rows.data_ptr(), *rows.shape, num_bytes, panels.data_ptr(), sums.data_ptr())
    return panels, sums


def filled(values: Tensor | None, length: int) -> Tensor:
    """(length,) float32: the values, and zeros behind them."""
    result = torch.zeros(length)
    if values is not None:
        result[: len(values)] = values.detach()
    return result
