"""The attention of one layer, ours and others', from a cold and from a warm cache; and other parts of a layer."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from bandrank_bench.gpu.lab import COLD_BYTES, WARM_CALLS, Lab
from bandrank_bench.gpu.parts import Part, attention, head, last_layer, norms, up
from bandrank_bench.gpu.shape import Passages, Shape, floor_us
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.system import FULL_BACKENDS, System
from bandrank_kernels import Backend

LENGTHS = (164, 4086, 54, 502, 2038)  # lengths with goals first
WINDOWS = (4, 64)
HEAD_DIMS = (32, 64)
FLEX = (Shape(164, 4, 32), Shape(4086, 4, 32), Shape(4086, 64, 32))  # torch compiles each for some ten seconds
DRY = (Shape(20, 4, 32, num_heads=2, num_candidates=3), Shape(5, 8, 32, num_heads=2, num_candidates=3))
LAST_LAYERS = (Passages(164, 4, 32), Shape(164, 4, 32), Shape(4086, 4, 32), Shape(164, 4, 64))
ROWS, DRY_ROWS = (512, 7_900, 16_611), (7,)  # for norms; the last two: 100 passages, 100 candidates of 164 tokens
HIDDEN_SIZE, CANDIDATES = 384, 100
HOST_CALLS = 20
ALIKE = 1e-2  # ||baseline - ours|| / ||ours||; both are rounded several times

Build = Callable[[], System]


def cases(lab: Lab) -> Iterator[Case]:
    """Ours on all shapes, then other parts of a layer. Shapes with goals come first, as the last cases may be cut."""
    for shape in _shapes(lab):
        yield _case(lab, shape, "ours", partial(ours, lab, shape))
    parts = [last_layer(lab, shape) for shape in (DRY[:1] if lab.dry else LAST_LAYERS)]
    parts += [norms(lab, num_rows, HIDDEN_SIZE) for num_rows in (DRY_ROWS if lab.dry else ROWS)]
    parts.append(head(lab, DRY_ROWS[-1] if lab.dry else CANDIDATES, HIDDEN_SIZE))
    parts.append(up(lab, (DRY_ROWS if lab.dry else ROWS)[-1], HIDDEN_SIZE))
    for part in parts:
        for name, other in (("ours", lab.backend), ("torch", "vectorized")):
            yield Case(f"{part.name}, {name}", partial(timed_part, lab, part, other))


def baselines(lab: Lab) -> Iterator[Case]:
    """The baselines, on the same shapes in the same order."""
    shapes = _shapes(lab)
    backends = ("full math",) if lab.dry else FULL_BACKENDS
    for shape in shapes:
        if shape.window == shapes[0].window:  # full attention has no window
            for name in backends:
                yield _case(lab, shape, name, partial(baseline, "full", lab, shape, name))
        for name, as_written in (("paper", False), ("paper as written", True)):
            yield _case(lab, shape, name, partial(baseline, "paper", lab, shape, name, as_written=as_written))
        yield _case(lab, shape, "varlen", partial(baseline, "varlen", lab, shape))
        if shape in (DRY[:1] if lab.dry else FLEX):
            yield _case(lab, shape, "flex", partial(baseline, "flex", lab, shape))


def _shapes(lab: Lab) -> list[Shape]:
    if lab.dry:
        return list(DRY)
    return [Shape(length, window, dim) for dim in HEAD_DIMS for length in LENGTHS for window in WINDOWS]


def ours(lab: Lab, shape: Shape) -> System:
    """The fused operation."""
    call = attention(lab, shape).prepare(lab.backend)
    return System("ours", lambda qkv: [qkv], call, lambda results: results[0])


def baseline(kind: str, *arguments: object, **options: object) -> System:
    """Builds by a function of `baselines`, imported here so that what the module lacks fails no other case."""
    system = getattr(import_module("bandrank_bench.gpu.baselines"), kind)(*arguments, **options)
    assert isinstance(system, System)
    return system


def _case(lab: Lab, shape: Shape, name: str, build: Build) -> Case:
    return Case(f"{name} {shape}", partial(timed, lab, shape, name, build))


@torch.no_grad()
def timed(lab: Lab, shape: Shape, name: str, build: Build) -> Facts:
    """Microseconds of a call, over rotated inputs and over one. Raises AssertionError if a baseline that claims to
    compute our function does not.
    """
    system, part = build(), attention(lab, shape)
    (qkv,) = part.draw(0)
    facts: Facts = {"system": name, "tokens": shape.tokens, "window": shape.window, "head_dim": shape.head_dim}
    facts["floor_us"] = floor_us(shape.fused_bytes)
    first = system.arrange(qkv)
    if system.pack is not None and name != "ours":
        (right,) = part.prepare(lab.backend)(qkv)
        facts["difference"] = _difference(right, system.pack(system.attend(*first)))
    others = [system.arrange(*part.draw(seed)) for seed in range(1, lab.num_sets(qkv.nbytes))]
    facts["cold_us"] = _microseconds(lab, system.attend, [first, *others], keep=True)
    del others
    if qkv.nbytes < COLD_BYTES:  # no cache keeps more
        facts["warm_us"] = _microseconds(lab, system.attend, [first] * (1 if lab.dry else WARM_CALLS), keep=False)
    return facts


@torch.no_grad()
def timed_part(lab: Lab, part: Part, backend: Backend) -> Facts:
    """Microseconds of a call on the card, in a graph over rotated inputs and over one; and on the host without a graph,
    because saving the card's time is no gain if the host is slower. Raises AssertionError if the results differ from
    plain torch.
    """
    call, first = part.prepare(backend), part.draw(0)
    for right, other in zip(part.prepare("vectorized")(*first), call(*first), strict=True):
        _difference(right, other)
    largest = max(tensor.nbytes for tensor in first)
    sets = [first, *(part.draw(seed) for seed in range(1, lab.num_sets(largest)))]
    cold_us = _microseconds(lab, call, sets, keep=True)
    warm_us = _microseconds(lab, call, [first] * WARM_CALLS, keep=False)
    lab.synchronize()
    started = time.perf_counter()
    for _ in range(HOST_CALLS):
        call(*first)
    host_us = (time.perf_counter() - started) * 1e6 / HOST_CALLS
    lab.synchronize()
    floor, name = floor_us(largest), f"{part.name}, {backend}"  # the floor is reading the largest input once
    return {"system": name, "floor_us": floor, "cold_us": cold_us, "warm_us": warm_us, "host_us": host_us}


def _difference(right: Tensor, other: Tensor) -> float:
    """The relative norm of the difference. Raises AssertionError if it is more than rounding."""
    difference = float((other.float() - right.float()).norm() / right.float().norm())
    assert difference <= ALIKE, f"another function than ours: they differ by {difference}"
    return difference


def _microseconds(
    lab: Lab, call: Callable[..., Sequence[Tensor]], inputs: Sequence[Sequence[Tensor]], *, keep: bool
) -> float:
    """The time of one call. keep: keeps each result in memory, so that none overwrites another."""

    def run() -> list[Tensor]:
        results: list[Tensor] = []
        for tensors in inputs:
            results = [*(results if keep else []), *call(*tensors)]
        return results

    return lab.median_us(lab.capture(run)) / len(inputs)
