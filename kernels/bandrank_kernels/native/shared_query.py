"""Attention to a query that many rows share, by the CPU kernels: each row by itself, to the same bits in any batch."""

from torch import Tensor

from bandrank_kernels.native.checks import check, why_odd
from bandrank_kernels.native.library import native
from bandrank_kernels.native.threads import in_parts

MIN_ROWS = 64  # that are worth a thread


def attend_shared(rows: Tensor, keys: Tensor, values: Tensor, own: int = 0) -> Tensor:
    """(n, num_heads * head_dim) attention of each row to the query and to the `own` rows of its candidate, with one
    softmax.

    rows: (n, 3, num_heads, head_dim) queries, keys and values, those of a candidate consecutive; or
    (n, 1, num_heads, head_dim), the queries alone, if own is 0.  keys, values: (num_heads, query_len, head_dim), with
    at least one row. All are float32 in host memory, with a head_dim that `why_odd` accepts.
    Raises ValueError for other tensors.
    """
    check("keys", keys, None, None, None)
    heads, count, head_dim = keys.shape
    group = max(1, own)
    check("values", values, heads, count, head_dim)
    check("rows", rows, None, 3 if own else 1, heads, head_dim)
    if reason := why_odd(head_dim):
        raise ValueError(reason)
    if len(rows) % group or not count:
        raise ValueError(f"expected rows by {group} and a query, got {len(rows)} rows and {count} of the query")
    rows, keys, values = rows.contiguous(), keys.contiguous(), values.contiguous()
    out = rows.new_empty(len(rows), heads * head_dim)
    stride = rows.stride(0)

    def run(begin: int, end: int) -> None:
        begin, end = begin * group, end * group
        sizes = count, heads, head_dim
        addresses = keys.data_ptr(), values.data_ptr()
        native().attend_shared(
            rows[begin:].data_ptr(), stride, end - begin, own, *addresses, *sizes, out[begin:].data_ptr()
        )

    in_parts(len(rows) // group, max(1, MIN_ROWS // group), run)
    return out
