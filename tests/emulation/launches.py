"""Launches on the CPU: what the launcher hands to cupy goes to an emulation instead."""

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from bandrank_kernels.launch import Kernel, Launch
from emulation.compiled import Emulation, Schedule

SHARED_BYTES = 99 * 1024  # what a block can have on the smallest GPU with tensor cores that kernels are built for

_emulations: dict[Kernel, Emulation] = {}


def prepare(*kernels: Kernel, sanitize: bool = False) -> None:
    """Compiles the kernels of one source together, which takes little longer than one of them."""
    missing = defaultdict(list)
    for kernel in dict.fromkeys(kernels):
        if kernel not in _emulations:
            missing[kernel.source].append(kernel)

    def compiled(item: tuple[str, list[Kernel]]) -> Emulation:
        return Emulation(item[0], [kernel.expression for kernel in item[1]], sanitize=sanitize)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for together, emulation in zip(missing.values(), pool.map(compiled, missing.items()), strict=True):
            _emulations.update(dict.fromkeys(together, emulation))


def emulation_of(kernel: Kernel) -> Emulation:
    """Returns the emulation that a prepared kernel is compiled in."""
    return _emulations[kernel]


class EmulatedFunction:
    """Takes the calls of a `cupy.cuda.Function`; as there, an array of one struct is passed as a struct by value."""

    def __init__(self, kernel: Kernel, schedule: Schedule, seed: int) -> None:
        self._kernel, self._schedule, self._seed = kernel, schedule, seed

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int, stream: Any
    ) -> None:
        (params,) = args
        assert isinstance(params, np.ndarray)
        assert params.size == 1
        assert isinstance(stream.ptr, int)
        _emulations[self._kernel].launch(
            self._kernel.expression,
            grid=(*grid, 1, 1)[:3],
            block=(*block, 1, 1)[:3],
            arguments=[params[0]],
            shared_bytes=shared_mem,
            schedule=self._schedule,
            seed=self._seed,
        )


def run_here(launch: Launch, device: torch.device) -> None:
    """Stands in for `bandrank_kernels.launch.launch`."""
    assert device.type == "cpu"
    emulate(launch)


def emulate(launch: Launch, schedule: Schedule = "depth first", seed: int = 0) -> None:
    """Runs a launch whose tensors are in the CPU's memory."""
    prepare(launch.kernel)
    launch.check(SHARED_BYTES)
    launch.call(EmulatedFunction(launch.kernel, schedule, seed), stream=0)
