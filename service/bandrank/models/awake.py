"""Whether the processors of the workers stay awake between batches."""

import os

import torch

from bandrank.cpus import quota
from bandrank.models.workers import workers
from bandrank_kernels.native.awake import Awake, why_not_awake


def keep_awake(milliseconds: float, device: torch.device) -> str | None:
    """Keeps each processor awake for so long after a worker of this process has computed on it.

    Returns, as a clause, why they may sleep instead; None if they stay awake.
    """
    if reason := _why_not(milliseconds, device):
        return reason
    workers(torch.get_num_threads()).processors.awake = Awake(milliseconds / 1000)
    return None


def _why_not(milliseconds: float, device: torch.device) -> str | None:
    if not milliseconds:
        return "awake_ms is 0"
    if device.type != "cpu":
        return "a GPU computes"
    if quota() < len(os.sched_getaffinity(0)):
        return "it would count against the CPU quota of a control group"
    return why_not_awake()
