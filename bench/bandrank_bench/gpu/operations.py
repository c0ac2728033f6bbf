"""Stage 4: the attention of one layer, ours and what it is compared with, from a cold cache and from a warm one."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from bandrank_bench.gpu.baselines import flex, full, longformer, paper, varlen
from bandrank_bench.gpu.baselines.system import System
from bandrank_bench.gpu.lab import COLD_BYTES, WARM_CALLS, Lab
from bandrank_bench.gpu.layer_parts import EPS, plan_of, qkv_of
from bandrank_bench.gpu.shape import Shape, floor_us
from bandrank_bench.gpu.stage import Case, Facts
from bandrank_kernels import Backend
from bandrank_kernels.row_norms import add_norm

LENGTHS = (164, 4086, 54, 502, 2038)  # those that goals speak of first
WINDOWS = (4, 64)
HEAD_DIMS = (32, 64)
FLEX = (Shape(164, 4, 32), Shape(4086, 4, 32), Shape(4086, 64, 32))  # each takes torch some ten seconds to compile
DRY = (Shape(20, 4, 32, num_heads=2, num_candidates=3), Shape(5, 8, 32, num_heads=2, num_candidates=3))
LAST_LAYERS = (Shape(164, 4, 32), Shape(4086, 4, 32), Shape(164, 4, 64))
ROWS, DRY_ROWS = (512, 4096, 16_611), (7,)  # of norms; the last is 100 candidates of 164 tokens
HIDDEN_SIZE = 384
HOST_CALLS = 20
ALIKE = 1e-2  # ||baseline - ours|| / ||ours||: both rounded, several times

Build = Callable[[], System]


def cases(lab: Lab) -> Iterator[Case]:
    """Ours on all shapes, then the baselines, shapes that goals speak of first: what is cut off is least missed."""
    shapes = [Shape(length, window, dim) for dim in HEAD_DIMS for length in LENGTHS for window in WINDOWS]
    if lab.dry:
        shapes = list(DRY)
    for shape in shapes:
        yield _case(lab, shape, "ours", partial(ours, lab, shape))
    for shape in DRY[:1] if lab.dry else FLEX:
        yield _case(lab, shape, "flex", partial(flex.system, lab, shape))
    backends = full.DRY_BACKENDS if lab.dry else full.BACKENDS
    for shape in shapes:
        if shape.window == shapes[0].window:  # full attention knows no window
            for name, backend in backends.items():
                yield _case(lab, shape, name, partial(full.system, shape, name, backend))
        for name in ("paper", "paper as written"):
            yield _case(lab, shape, name, partial(paper.system, lab, shape, name))
        yield _case(lab, shape, "varlen", partial(varlen.system, lab, shape))
        yield _case(lab, shape, "longformer", partial(longformer.system, lab, shape))
    for shape in DRY[:1] if lab.dry else LAST_LAYERS:
        yield Case(f"last layer, ours, {shape}", partial(last_layer, lab, shape, lab.backend))
        yield Case(f"last layer, torch, {shape}", partial(last_layer, lab, shape, "vectorized"))
    for num_rows in DRY_ROWS if lab.dry else ROWS:
        yield Case(f"norm, ours, {num_rows} rows", partial(norm, lab, num_rows, lab.backend))
        yield Case(f"norm, torch, {num_rows} rows", partial(norm, lab, num_rows, "vectorized"))


def ours(lab: Lab, shape: Shape) -> System:
    """The fused operation."""
    plan = plan_of(lab, shape)
    return System("ours", lambda qkv: [qkv], lambda qkv: [plan.attend(qkv)], lambda results: results[0])


def _case(lab: Lab, shape: Shape, name: str, build: Build) -> Case:
    return Case(f"{name} {shape}", partial(timed, lab, shape, name, build))


@torch.no_grad()
def timed(lab: Lab, shape: Shape, name: str, build: Build) -> Facts:
    """Microseconds of a call, over rotated inputs and over one. Raises AssertionError if a baseline that says that it
    computes our function does not.
    """
    system = build()
    qkv = qkv_of(lab, shape)
    facts: Facts = {"system": name, "tokens": shape.tokens, "window": shape.window, "head_dim": shape.head_dim}
    facts["floor_us"] = floor_us(shape.fused_bytes)
    first = system.arrange(qkv)
    if system.pack is not None and name != "ours":
        facts["difference"] = _difference(plan_of(lab, shape).attend(qkv), system.pack(system.attend(*first)))
    others = [system.arrange(qkv_of(lab, shape, seed=seed)) for seed in range(1, lab.num_sets(qkv.nbytes))]
    facts["cold_us"] = _microseconds(lab, system, [first, *others], keep=True)
    del others
    if qkv.nbytes < COLD_BYTES:  # more than that no cache keeps
        facts["warm_us"] = _microseconds(lab, system, [first] * (1 if lab.dry else WARM_CALLS), keep=False)
    return facts


@torch.no_grad()
def last_layer(lab: Lab, shape: Shape, backend: Backend) -> Facts:
    """Microseconds of [CLS]'s attention in the last layer, over rotated rows. floor_us: of reading them once."""
    plan = plan_of(lab, shape, backend)
    query = lab.randn(shape.num_candidates, shape.num_heads, shape.hidden)
    first = lab.randn(shape.rows().num_rows, shape.hidden)
    others = [lab.randn(*first.shape, seed=seed) for seed in range(1, lab.num_sets(first.nbytes))]

    def run() -> list[Tensor]:
        return [plan.attend_cls(query, hidden, shape.head_dim**-0.5) for hidden in (first, *others)]

    cold_us = lab.median_us(lab.capture(run).replay) / (1 + len(others))
    floor = floor_us(first.nbytes)
    return {"system": f"last layer, {backend}", "shape": str(shape), "cold_us": cold_us, "floor_us": floor}


@torch.no_grad()
def norm(lab: Lab, num_rows: int, backend: Backend) -> Facts:
    """Microseconds of a residual with its LayerNorm, on the card in a graph and on the host without one: where the
    host is the slower one, a kernel that saves the card time is a loss.
    """
    x, residual = (lab.randn(num_rows, HIDDEN_SIZE, seed=seed) for seed in (0, 1))
    weight, bias = (lab.randn(HIDDEN_SIZE, seed=seed) for seed in (2, 3))

    def run() -> list[Tensor]:
        return [add_norm(x, residual, weight, bias, eps=EPS, backend=backend) for _ in range(HOST_CALLS)]

    warm_us = lab.median_us(lab.capture(run).replay) / HOST_CALLS
    lab.synchronize()
    begun = time.perf_counter()
    run()
    host_us = (time.perf_counter() - begun) * 1e6 / HOST_CALLS
    lab.synchronize()
    return {"system": f"norm, {backend}", "num_rows": num_rows, "warm_us": warm_us, "host_us": host_us}


def _difference(right: Tensor, found: Tensor) -> float:
    """Of the whole, by its norm. Raises AssertionError if it is more than rounding."""
    difference = float((found.float() - right.float()).norm() / right.float().norm())
    assert difference <= ALIKE, f"another function than ours: they differ by {difference}"
    return difference


def _microseconds(lab: Lab, system: System, inputs: Sequence[Sequence[Tensor]], *, keep: bool) -> float:
    """Of one call. keep: each result in memory of its own, so that none is written where the last one lies."""

    def run() -> list[Tensor]:
        results: list[Tensor] = []
        for tensors in inputs:
            results = [*(results if keep else []), *system.attend(*tensors)]
        return results

    replay = lab.capture(run).replay if system.capturable else run
    return lab.median_us(replay) / len(inputs)
