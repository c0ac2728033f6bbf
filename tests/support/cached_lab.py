"""Scores stored candidates through graphs on a recording device, with modules in which mistakes may be planted."""

import sys
from types import ModuleType

from emulation.graphs import RecordingDevice
from support.graph_lab import ROUNDING
from torch import Tensor

from bandrank.models.architectures import MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.graphs import GraphRunner

# In the order of their imports.
CACHED_MODULES = ("bandrank_kernels.staging", "bandrank.models.cached_buckets", "bandrank.models.graphs")
REAL = {name: sys.modules[name] for name in CACHED_MODULES}


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


def is_near(actual: Tensor, right: Tensor) -> bool:
    """Whether scores, which are of the order of 10, are equal up to the rounding of matrix products."""
    return actual.shape == right.shape and bool(((actual - right).abs() <= 10 * ROUNDING).all())
