"""The strongest composition of library calls: torch's varlen attention, windowed for the band, once more for the
globals, and the two merged by their log-sum-exps.
"""

from collections.abc import Sequence
from importlib import import_module
from inspect import signature

import torch
from torch import Tensor

from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.records import Skipped
from bandrank_bench.gpu.shape import Shape


def system(lab: Lab, shape: Shape) -> System:
    """Raises Skipped where torch has no varlen attention with a window, or no GPU."""
    try:
        varlen = import_module("torch.nn.attention.varlen")
    except ImportError as error:
        raise Skipped(f"this torch has no varlen attention: {error}") from None
    if "window_size" not in signature(varlen.varlen_attn).parameters:
        raise Skipped("this torch's varlen attention has no window")
    lab.require_gpu()

    count, length, seen = shape.num_candidates, shape.candidate_rows, shape.num_globals

    def starts(step: int, number: int = count) -> Tensor:
        return torch.arange(number + 1, device=lab.device, dtype=torch.int32) * step

    cls = torch.arange(count, device=lab.device)[:, None]
    query = torch.arange(count, count + seen - 1, device=lab.device).expand(count, -1)
    shared = torch.cat([cls, query], 1).flatten()  # the rows that each candidate sees beside its own
    by_one, by_seen, by_length = starts(1), starts(seen), starts(length)
    of_query = starts(seen - 1, 1)
    aux = varlen.AuxRequest(lse=True)

    def call(rows: Tensor, keys: Sequence[Tensor], *sizes: Tensor | int, **options: object) -> tuple[Tensor, Tensor]:
        out, lse = varlen.varlen_attn(rows, *keys, *sizes, return_aux=aux, **options)
        return out, lse if lse.shape == out.shape[:2] else lse.T  # versions of torch differ

    def merge(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
        weight = torch.sigmoid(one[1] - other[1])[..., None]
        return torch.lerp(other[0], one[0], weight.to(one[0].dtype))

    def attend(query_rows: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        first = count + seen - 1
        shared_keys = [rows.index_select(0, shared) for rows in (key, value)]
        own_keys = [key[first:], value[first:]]
        own, cls_rows = query_rows[first:], query_rows[:count]
        window = (shape.window, shape.window)
        near = call(own, own_keys, by_length, by_length, length, length, window_size=window)
        far = call(own, shared_keys, by_length, by_seen, length, seen)
        cls_near = call(cls_rows, own_keys, by_one, by_length, 1, length)
        cls_far = call(cls_rows, shared_keys, by_one, by_seen, 1, seen)
        asked = slice(count, first)
        keys = [key[asked], value[asked]]
        query_out, _ = call(query_rows[asked], keys, of_query, of_query, seen - 1, seen - 1)
        return [merge(cls_near, cls_far), query_out, merge(near, far)]

    return System(
        "varlen", lambda qkv: [rows.contiguous() for rows in qkv.unbind(1)], attend, lambda out: torch.cat([*out])
    )
