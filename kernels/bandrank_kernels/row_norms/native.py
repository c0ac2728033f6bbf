"""The CPU kernels' backend: one call of `bandrank_norm_of_sum` for any number of rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bandrank_kernels.native.library import AddendStruct, NormStruct, native, why_no_native
from bandrank_kernels.native.threads import in_parts
from bandrank_kernels.native.weights import MULTIPLE
from bandrank_kernels.row_norms.addend import Addend


def why_unsupported(device: torch.device, dtype: torch.dtype, hidden_size: int) -> str | None:
    """Why the CPU kernels cannot run, as a clause; None if they can."""
    if device.type != "cpu" or dtype != torch.float32:
        return f"the CPU kernels take float32 rows on a CPU, got {dtype} on {device}"
    if hidden_size % MULTIPLE or not hidden_size:
        return f"the CPU kernels take rows of a multiple of {MULTIPLE} numbers, got {hidden_size}"
    return why_no_native()


def norm_of_sum(addends: Sequence[Addend], weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(total, hidden_size) LayerNorm of the sum, added in the order of the addends. Raises IndexError."""
    out = weight.new_empty((addends[0].total, len(weight)))
    addends = [Addend(_whole(rows), None if numbers is None else numbers.contiguous()) for rows, numbers in addends]
    structs = (AddendStruct * len(addends))(*(_struct(addend) for addend in addends))
    weight, bias = weight.contiguous(), bias.contiguous()
    norm = NormStruct(weight.data_ptr(), bias.data_ptr(), eps, 1)

    def run(begin: int, end: int) -> None:
        native().norm_of_sum(structs, len(structs), norm, begin, end, len(weight), out[begin:].data_ptr())

    in_parts(len(out), native().block_rows, run)
    return out


def _whole(rows: Tensor) -> Tensor:
    """The rows, or a copy of them if their numbers have gaps."""
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _struct(addend: Addend) -> AddendStruct:
    rows, numbers = addend
    return AddendStruct(rows.data_ptr(), None if numbers is None else numbers.data_ptr(), len(rows), rows.stride(0))
