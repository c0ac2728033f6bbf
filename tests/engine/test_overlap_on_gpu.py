"""A batch starts on a GPU without waiting for the GPU's earlier work."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.models import random_ids, random_scorer
from support.modernbert import tiny_sequence_cross_encoder
from support.on_gpu import GPU, awaiting_nothing, needs_gpu
from support.tasks import CLIENT
from support.tokenizer import CLS_ID, SEP_ID, vocab_size

from bandrank.engine.lanes import ScoreLane
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.engine.tickets import Ticket
from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.ids import RaggedIds
from bandrank.models.layers.patterns import FULL, longformer, sparse
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

ENCODER = EncoderConfig(vocab_size(), 64, 2, 2, 256, 128)
LONG, SHORT = 200, 20  # the long one is scored in passages


def cross_encoder(pattern: AttentionPattern) -> Scorer:
    """A cross-encoder with random weights."""
    config = CrossEncoderConfig(
        encoder=ENCODER, cls_id=CLS_ID, sep_id=SEP_ID, pattern=pattern, max_tokens=128, max_query_tokens=32
    )
    return random_scorer(CrossEncoder(config), 0)


@needs_gpu
@pytest.mark.parametrize(
    "make",
    [
        lambda: cross_encoder(sparse(window=4)),
        lambda: cross_encoder(FULL),  # in plain torch, like the two below
        lambda: cross_encoder(longformer(window=4)),
        lambda: tiny_sequence_cross_encoder(max_tokens=128),
    ],
    ids=["sparse", "full", "longformer", "ModernBERT"],
)
def test_a_batch_starts_while_the_gpu_is_busy(make: Callable[[], Scorer]) -> None:
    """With and without CUDA graphs, the scores are those of an idle GPU."""
    rng = random.Random(1)
    candidates = [random_ids(rng, length) for length in (SHORT, LONG, SHORT)]
    for graphs in (False, True):
        scorer = prepare(make(), device=GPU, dtype=torch.float16, graphs=graphs)
        lane = ScoreLane("score", scorer, Ragged.from_ids)
        assert lane.overlaps
        query = np.array(random_ids(rng, 5), np.int32)
        task = Task(lane, query, RaggedIds.of(candidates), [1.0] * 3, 0.0, Ticket(CLIENT, math.inf))
        slices = [TaskSlice(task, 0, 3)]
        with torch.inference_mode():
            expected = lane.begin(slices)()
            with awaiting_nothing():
                scores = lane.begin(slices)
            assert scores() == expected
