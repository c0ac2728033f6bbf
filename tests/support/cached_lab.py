"""Scores stored candidates through graphs on a recording device, with modules in which mistakes may be planted."""

import sys
from types import ModuleType

import torch
from emulation.graphs import RecordingDevice
from support.graph_lab import ROUNDING
from support.layouts import CPU
from torch import Tensor

from bandrank.models.architectures import MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.graphs import GraphRunner
from bandrank.models.prepared import PreparedScorer, prepare

# In the order of their imports.
CACHED_MODULES = ("bandrank_kernels.staging", "bandrank.models.cached_buckets", "bandrank.models.graphs")
REAL = {name: sys.modules[name] for name in CACHED_MODULES}


@torch.inference_mode()
def served(scorer: MixEncoder, device: RecordingDevice) -> PreparedScorer:
    """A prepared copy of the scorer that replays graphs."""
    copy = MixEncoder(scorer.config)
    copy.load_state_dict(scorer.state_dict())
    return prepare(copy, device=CPU, dtype=torch.float32, graphs=device)


def runner_of(
    scorer: MixEncoder, device: RecordingDevice, house: dict[str, ModuleType] = REAL, **limits: int
) -> GraphRunner[ScoreBatch]:
    """A runner that is made of these modules. limits: those of its buckets."""
    buckets = house["bandrank.models.cached_buckets"].CachedBuckets(
        scorer.compute, scorer.encoder, scorer.config.num_embeddings, scorer.lexical, **limits
    )
    runner: GraphRunner[ScoreBatch] = house["bandrank.models.graphs"].GraphRunner(buckets, device)
    return runner


def scored(runner: GraphRunner[ScoreBatch], batch: ScoreBatch, *, capture: bool = True) -> Tensor:
    """The scores of a batch that has a bucket."""
    scores = runner.compute(batch, capture=capture)
    assert scores is not None
    return scores


def is_near(actual: Tensor, right: Tensor, size: float = 10) -> bool:
    """Whether numbers are equal up to the rounding of matrix products. size: their order, by default that of scores."""
    return actual.shape == right.shape and bool(((actual - right).abs() <= size * ROUNDING).all())
