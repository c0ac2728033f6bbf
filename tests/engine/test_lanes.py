"""A lane keeps every candidate with its query, and scores a representation as if it had just been encoded."""

import random
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import random_ids, score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.tasks import task_of

from bandrank.engine.cache.codec import RepresentationCodec
from bandrank.engine.lanes import EncodeLane, PassageLane, ScoreLane, collate
from bandrank.engine.tasks import Task, TaskSlice
from bandrank.models.ids import NO_IDS, RaggedIds
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8))
def test_collate_keeps_every_candidate_with_its_query(shapes: list[tuple[int, int, int]]) -> None:
    """The batch has no query twice, and each slice's candidates stand under its query, in the order that `collate`
    returns.
    """
    slices = []
    for number, (query, size, skipped) in enumerate(shapes):
        task = task_of([1] * (size + skipped))
        task.query = np.full(query + 1, query, np.int32)
        ids = [[number] * (position % 3) + [position] for position in range(size + skipped)]
        task.candidates = RaggedIds.of(ids)
        slices.append(TaskSlice(task, skipped, skipped + size))
    batch, order = collate(slices, Ragged.from_ids)

    ordered = [slices[index] for index in order]
    queries = [tuple(batch.queries[owner].tolist()) for owner in range(len(batch.queries))]
    found = [
        (queries[owner], batch.candidates[position].tolist()) for position, owner in enumerate(batch.candidate_query)
    ]
    expected = [(tuple(s.task.query), candidate) for s in ordered for candidate in s.candidates.tolist()]
    assert found == expected
    assert len(set(queries)) == len(queries)
    assert sorted(order) == list(range(len(slices)))


def test_encoding_and_scoring_apart_are_the_scores_of_one_pass() -> None:
    """A bi-encoder's candidates of two tasks are encoded in one batch and scored in another."""
    rng = random.Random(2)
    scorer = prepare(tiny_bi_encoder(), device=torch.device("cpu"), dtype=torch.float32)
    codec = RepresentationCodec(scorer.scorer.representation_size, "float32")
    encode = EncodeLane("encode", scorer, codec)
    score = ScoreLane("score", scorer, lambda parts: codec.decode([*chain(*parts)]))
    queries = [random_ids(rng, 5), random_ids(rng, 3)]
    candidates = [[random_ids(rng, n) for n in (0, 7, 20)], [random_ids(rng, n) for n in (9, 4)]]
    with torch.inference_mode():
        tasks = [Task(encode, NO_IDS, RaggedIds.of(group), [1.0] * len(group), 0.0, 1.0) for group in candidates]
        payloads = encode.begin([TaskSlice(task, 0, len(task.candidates)) for task in tasks])()
        assert not any(isinstance(group, Exception) for group in payloads)
        tasks = [
            Task(score, np.array(query, np.int32), group, [1.0] * len(group), 0.0, 1.0)  # type: ignore[arg-type]
            for query, group in zip(queries, payloads, strict=True)
        ]
        scores = score.begin([TaskSlice(task, 0, len(task.candidates)) for task in tasks])()
        expected = scorer(score_batch(queries, candidates)).tolist()

    assert [one for group in scores for one in group] == pytest.approx(expected, abs=1e-5)  # type: ignore[union-attr]


@pytest.mark.parametrize("with_passages", [False, True])
def test_slices_come_early_with_the_results_that_they_would_have_at_the_end(*, with_passages: bool) -> None:
    """The batch is cut into four parts, each with several whole requests."""
    rng = random.Random(3)
    prepared = prepare(tiny_cross_encoder(max_tokens=64), device=torch.device("cpu"), dtype=torch.float32)
    scores = ScoreLane("score", prepared, Ragged.from_ids)
    lane = PassageLane(scores) if with_passages else scores
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        slices = []
        for _ in range(24):
            task = task_of([50.0] * 5)
            task.query = np.array(random_ids(rng, 3), np.int32)
            task.candidates = RaggedIds.of([random_ids(rng, 50) for _ in range(5)])
            slices.append(TaskSlice(task, 0, 5))
        with torch.inference_mode():
            arriving = lane.begin(slices)
            early = dict(arriving.early())
            outcomes = arriving()
    finally:
        torch.set_num_threads(threads)
    assert early
    assert {index: outcomes[index] for index in early} == early
