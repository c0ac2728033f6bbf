"""Workers: parts of a batch on threads that compute alone."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import score_batch, tiny_cross_encoder
from support.variants import random_texts

from bandrank.models.ragged import Ragged
from bandrank.models.workers import COARSE, FINE, MIN_PART_ROWS, Grain, Workers, parts_of, split, workers


def test_each_computes_with_one_thread() -> None:
    """From its first operation on; the thread that started them keeps its own number."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        seen = Workers(3).run(lambda _: (torch.ones(9) + 1, torch.get_num_threads())[1], range(6))
        assert (torch.get_num_threads(), seen) == (3, [1] * 6)
        later: list[int] = []
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert later == [3]
    finally:
        torch.set_num_threads(before)


def test_parts_run_side_by_side_without_gradients() -> None:
    """Two wait for each other; results keep the order of the parts."""
    together = threading.Barrier(2, timeout=20)

    def compute(part: int) -> tuple[int, bool]:
        together.wait()
        return part, torch.is_grad_enabled()

    assert workers(2).run(compute, [7, 5]) == [(7, False), (5, False)]


def test_an_error_is_raised_when_all_have_ended() -> None:
    """No part still runs when the caller goes on."""
    ended = []

    def compute(part: int) -> None:
        if part == 1:
            raise MemoryError("no room")
        threading.Event().wait(0.05)
        ended.append(part)

    with pytest.raises(MemoryError, match="no room"):
        workers(2).run(compute, [0, 1, 2, 3])
    assert sorted(ended) == [0, 2, 3]


def test_parts_that_are_begun_follow_those_before_them() -> None:
    """Nobody waits for them but who asks for their results; there is room once the last has begun."""
    pool, begun, go_on = Workers(2), [], [threading.Event(), threading.Event()]

    def compute(part: int) -> tuple[int, bool]:
        begun.append(part)
        assert go_on[part // 3].wait(20)
        return part, torch.is_grad_enabled()

    first = pool.begin(compute, [0, 1, 2])
    second = pool.begin(compute, [3, 4])
    assert not pool._room.is_set()
    go_on[0].set()
    assert first() == [(0, False), (1, False), (2, False)]
    pool.wait_for_room()
    assert sorted(begun) == [0, 1, 2, 3, 4]
    go_on[1].set()
    assert second() == [(3, False), (4, False)]
    assert pool.begin(compute, [])() == []
    pool.wait_for_room()


def test_a_part_that_threads_share_leaves_room_when_it_has_ended() -> None:
    """Beside the workers, with all threads, and even if it fails."""
    pool, go_on = workers(2), threading.Event()

    def compute(part: int) -> tuple[int, int, bool]:
        assert go_on.wait(20)
        return 1 // part, torch.get_num_threads(), torch.is_grad_enabled()

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        results = pool.begin_together(compute, 1)
        assert not pool._room.is_set()
        go_on.set()
        assert results() == [(1, 2, False)]
        pool.wait_for_room()
        failing = pool.begin_together(compute, 0)
        pool.wait_for_room()
        with pytest.raises(ZeroDivisionError):
            failing()
    finally:
        torch.set_num_threads(before)


def test_parts_are_computed_while_the_interpreter_ends() -> None:
    """By who asks, as a pool that is shut down takes nothing more; errors wait for the others all the same."""
    pool = Workers(2)
    pool._pool.shutdown()
    pool._together.shutdown()
    assert pool.begin(lambda part: 6 // part, [1, 2, 3])() == [6, 3, 2]
    assert pool.begin_together(lambda part: 6 // part, 6)() == [1]
    pool.wait_for_room()
    with pytest.raises(ZeroDivisionError):
        pool.begin(lambda part: 6 // part, [0, 1])()


@given(st.lists(st.integers(0, 2000), max_size=40), st.integers(1, 8), st.sampled_from([FINE, COARSE]))
def test_runs_cover_all_sequences_once(lengths: list[int], count: int, grain: Grain) -> None:
    """In order, none empty, and no more of them than are worth it."""
    runs = split(np.array(lengths, np.int64), count, grain)

    assert [index for run in runs for index in range(run.start, run.stop)] == list(range(len(lengths)))
    assert len(runs) == 1 or all(run.start < run.stop for run in runs)
    assert len(runs) <= max(1, min(count, sum(lengths) // MIN_PART_ROWS), sum(lengths) // grain.least + 1)


def sizes(lengths: list[int], grain: Grain = FINE) -> list[int]:
    """Of the parts that two workers are given, in rows."""
    return [sum(lengths[run]) for run in split(np.array(lengths, np.int64), 2, grain)]


def test_small_batches_give_each_worker_one_part_and_large_ones_smaller_and_smaller_ones() -> None:
    """A worker that is slow in one of the first takes fewer of the last."""
    assert sizes([75] * 2) == [150]
    assert sizes([75] * 10) == [375, 375]
    many = sizes([75] * 100)
    assert many[0] == pytest.approx(7500 / 4, abs=75)
    assert all(following <= part + 75 for part, following in pairwise(many))
    assert many[-2] == pytest.approx(FINE.least, abs=75)
    assert min(sizes([64] * 64, COARSE)) == COARSE.least


def test_a_long_candidate_is_not_waited_for() -> None:
    """By a worker that has nothing else to do."""
    assert sizes([4096, 4096]) == [4096, 4096]
    assert sizes([4096] * 3) == [3 * 4096]
    assert sizes([75] * 20 + [4096]) == [75 * 20 + 4096]


def test_parts_of_a_batch_have_its_pairs() -> None:
    """Each candidate with its query, however the runs fall; a query whose candidates are in two parts is in both."""
    queries, candidates = random_texts(tiny_cross_encoder())
    batch = score_batch(queries, candidates)
    pairs = [(query, candidate) for query, group in zip(queries, candidates, strict=True) for candidate in group]

    for runs in ([slice(0, 10)], [slice(0, 3), slice(3, 8), slice(8, 10)], [slice(i, i + 1) for i in range(10)]):
        found = [
            (part.queries[query].tolist(), part.candidates[index].tolist())
            for part in parts_of(batch, runs)
            for query, group in part.groups()
            for index in range(group.start, group.stop)
        ]
        assert found == pairs
    assert len(parts_of(score_batch([], []), [slice(0, 0)])[0].candidates) == 0


def test_joined_parts_are_the_whole() -> None:
    """Representations in the order of the texts, empty ones too."""
    whole = Ragged(torch.randn(9, 4), np.array([0, 2, 2, 5, 9]))
    parts = [whole.part(slice(0, 2)), whole.part(slice(2, 4))]

    assert torch.equal(Ragged.joined(parts).values, whole.values)
    assert Ragged.joined(parts).cu_seqlens.tolist() == [0, 2, 2, 5, 9]
    assert Ragged.joined([whole]) is whole
