"""Workers: threads that each compute with one torch thread."""

import threading
from queue import SimpleQueue

import pytest
import torch
from support.torch_threads import torch_threads

from bandrank.models.workers import Workers, workers


def test_each_worker_computes_with_one_thread() -> None:
    """A worker has one torch thread from its first operation on; other threads keep their number."""
    with torch_threads(3):
        seen = Workers(3).run(lambda _: (torch.ones(9) + 1, torch.get_num_threads())[1], range(6))
        assert (torch.get_num_threads(), seen) == (3, [1] * 6)
        later: list[int] = []
        other = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert later == [3]


def test_parts_run_side_by_side_without_gradients() -> None:
    """Each of the two parts waits for the other; results keep the order of the parts."""
    together = threading.Barrier(2, timeout=20)

    def compute(part: int) -> tuple[int, bool]:
        together.wait()
        return part, torch.is_grad_enabled()

    assert workers(2).run(compute, [7, 5]) == [(7, False), (5, False)]


def test_an_error_is_raised_when_all_have_ended() -> None:
    """No part may still be running when the caller goes on."""
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
    """Only a caller that asks for results waits for them, and there is room once the last part has begun."""
    pool, go_on = Workers(2), [threading.Event(), threading.Event()]
    begun: SimpleQueue[int] = SimpleQueue()

    def compute(part: int) -> tuple[int, bool]:
        begun.put(part)
        assert go_on[part // 3].wait(20)
        return part, torch.is_grad_enabled()

    first = pool.begin(compute, [0, 1, 2])
    second = pool.begin(compute, [3, 4])
    assert second.wake is not None
    second.wake()
    waiting = threading.Thread(target=lambda: [*second.early()], daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go_on[0].set()
    assert first() == [(0, False), (1, False), (2, False)]
    waiting.join(20)
    assert not waiting.is_alive()
    assert sorted(begun.get(timeout=20) for _ in range(5)) == [0, 1, 2, 3, 4]
    go_on[1].set()
    assert second() == [(3, False), (4, False)]
    assert pool.begin(compute, [])() == []
    assert [*pool.begin(compute, []).early()] == []


def test_parts_come_early_until_the_last_one_begins() -> None:
    """A part that fails does not come; whoever asks once more does not wait."""
    pool, go_on = Workers(2), threading.Event()

    def compute(part: int) -> int:
        assert part == 1 or go_on.wait(20)
        return 6 // part

    begun = pool.begin(compute, [1, 2, 0, 3])
    early = begun.early()
    assert next(early) == (0, 6)
    go_on.set()
    assert dict(early).items() <= {(1, 3), (3, 2)}
    assert 2 not in dict(begun.early())
    with pytest.raises(ZeroDivisionError):
        begun()


def test_who_waits_for_parts_is_woken_once_or_by_their_end() -> None:
    """Once the last part has begun, each call of `early` waits for a call of `wake`, or for the end, even of a part
    that fails. Each result comes once.
    """
    pool, go_on = Workers(2), [threading.Event(), threading.Event()]

    def compute(part: int) -> int:
        assert go_on[part].wait(20)
        return 1 // part

    begun = pool.begin(compute, [0, 1])
    assert [*begun.early()] == []
    assert begun.wake is not None
    begun.wake()
    assert [*begun.early()] == []
    assert not begun.ended()
    go_on[1].set()
    threading.Timer(0.05, go_on[0].set).start()
    assert [*begun.early()] == [(1, 1)]
    assert begun.ended()
    assert [*begun.early()] == []


def test_a_part_that_threads_share_leaves_room_when_it_has_ended() -> None:
    """The part is computed beside the workers with all threads, and leaves room even if it fails."""
    pool, go_on = workers(2), threading.Event()

    def compute(part: int) -> tuple[int, int, bool]:
        assert go_on.wait(20)
        return 1 // part, torch.get_num_threads(), torch.is_grad_enabled()

    with torch_threads(2):
        results = pool.begin_together(compute, 1)
        waiting = threading.Thread(target=lambda: [*results.early()], daemon=True)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        go_on.set()
        assert results() == [(1, 2, False)]
        assert [*results.early()] == []
        failing = pool.begin_together(compute, 0)
        assert [*failing.early()] == []
        with pytest.raises(ZeroDivisionError):
            failing()


def test_parts_are_computed_while_the_interpreter_ends() -> None:
    """The caller computes parts that a closed pool refuses; an error is raised once the other parts have ended."""
    pool = Workers(2)
    pool._pool.shutdown()
    pool._together.shutdown()
    assert pool.begin(lambda part: 6 // part, [1, 2, 3])() == [6, 3, 2]
    together = pool.begin_together(lambda part: 6 // part, 6)
    assert [*together.early()] == []
    assert together() == [1]
    with pytest.raises(ZeroDivisionError):
        pool.begin(lambda part: 6 // part, [0, 1])()
