"""Launches on the CPU: what the launcher hands to cupy goes to an emulation instead."""

from collections import defaultdict
from typing import Any

import numpy as np
from support.emulation import Emulation, Schedule

from bandrank_kernels.launch import Kernel, Launch

SHARED_BYTES = 64 * 1024  # what a block can have on the smallest GPU that kernels are built for

_emulations: dict[Kernel, Emulation] = {}


def prepare(*kernels: Kernel) -> None:
    """Compiles the kernels of one source together, which takes little longer than one of them."""
    missing = defaultdict(list)
    for kernel in dict.fromkeys(kernels):
        if kernel not in _emulations:
            missing[kernel.source].append(kernel)
    for source, together in missing.items():
        emulation = Emulation(source, [kernel.expression for kernel in together])
        _emulations.update(dict.fromkeys(together, emulation))


class EmulatedFunction:
    """Takes the calls that a `cupy.cuda.Function` takes; an array of one struct is a struct by value, as there."""

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


def emulate(launch: Launch, schedule: Schedule = "depth first", seed: int = 0) -> None:
    """Runs a launch whose tensors are in the CPU's memory."""
    prepare(launch.kernel)
    launch.check(SHARED_BYTES)
    launch.call(EmulatedFunction(launch.kernel, schedule, seed), stream=0)
