"""Batches replayed from CUDA graphs have the bits of launches, whatever is in the bucket and whatever came before."""

import random
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from emulation.compiled import needs_compiler
from emulation.graphs import ExactProducts, RecordingDevice
from support.graph_lab import ALIKE, SMALL, Lab, expected, is_right, launched, packed, plan_of, scorer, serve_from
from support.layouts import CPU
from support.models import random_ids, random_scorer, score_batch
from support.scorers import loaded
from support.tasks import Clock
from torch import Tensor

from bandrank import assembly
from bandrank.engine.engine import Engine
from bandrank.errors import BadSetting
from bandrank.models import graphs
from bandrank.models.architectures import CrossEncoder, cross_encoder
from bandrank.models.layers.norm import LayerNorm
from bandrank.models.layers.packing import PackedInputs
from bandrank.models.packed_buckets import PackedBuckets
from bandrank.models.prepared import prepare
from bandrank.settings import Settings
from bandrank_kernels.windowed_attention import Capacity
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan

pytestmark = needs_compiler


def test_batches_of_a_bucket_share_a_graph_and_have_the_bits_of_launches() -> None:
    """Replays and launches of a bucket give the same bits; scores computed without buckets differ by rounding alone."""
    lab = Lab.of()
    for number in (0, 1, 2, 3, 0):
        results = lab.score(ALIKE[number])
        assert is_right(results, expected(number))
        again = lab.runner.compute(ALIKE[number], capture=False)
        assert again is not None
        assert torch.equal(again, results)

    assert (len(lab.runner), lab.device.captures, lab.device.replays) == (1, 1, 5)
    assert lab.runner.graph_bytes == 1000


def test_a_score_depends_on_neither_company_nor_bucket() -> None:
    """With matrix products whose bits do not depend on their size, a candidate's score has the same bits in every
    bucket.
    """
    lengths = [9, 0, 40]
    batches = [
        packed([5], [[*lengths, *more]], seed=0)  # the query and the first candidates draw first
        for more in ([], [3] * 10, [70] * 5, [1] * 40)
    ]
    with ExactProducts():
        right = launched(batches[0])
        for batch in batches:
            lab = Lab.of()
            for _ in range(2):
                assert torch.equal(lab.score(batch)[: len(lengths)], right)

    assert len({Capacity.of(batch.rows) for batch in batches}) == len(batches)


def test_batches_in_flight_do_not_meet() -> None:
    """While batches of two buckets wait on the device, no buffer is overwritten that is still to be read."""
    lab = Lab.of(running="late")
    batches = [ALIKE[0], ALIKE[1], SMALL, ALIKE[2], ALIKE[3], SMALL]
    right = [launched(batch) for batch in batches]
    for _ in range(2):
        results = [lab.score(batch) for batch in batches]
        lab.device.drain()
        assert all(map(is_right, results, right))


def test_the_host_waits_for_no_batch_that_is_computed() -> None:
    """The host enqueues two batches before the device has computed a score; a third needs the first one's buffer back,
    for which the first need not have been computed.
    """
    lab = Lab.of(running="late")
    lab.score(ALIKE[0])
    lab.device.drain()
    before = lab.device.replays
    for number in (1, 2):
        lab.score(ALIKE[number])
    assert lab.device.replays == before

    lab.score(ALIKE[3])
    assert lab.device.replays == before


def test_two_threads_take_turns() -> None:
    """The second thread does not fill the inputs before the first has enqueued all its work."""
    lab = Lab.of()
    lab.score(ALIKE[0])
    inside, entered = threading.Event(), threading.Event()
    copy, results = lab.device.copy, {}

    def slow_copy(to: Tensor, source: Tensor) -> None:
        if threading.current_thread().name == "second":
            entered.set()
        elif not inside.is_set():
            inside.set()
            results["met"] = entered.wait(0.2)
        copy(to, source)

    def score(number: int) -> None:
        results[str(number)] = lab.score(ALIKE[number])

    lab.device.copy = slow_copy  # type: ignore[method-assign]  # a hook
    first, second = (threading.Thread(target=score, args=(n,), name=name) for n, name in ((1, "first"), (2, "second")))
    first.start()
    inside.wait()
    second.start()
    first.join()
    second.join()

    assert results["met"] is False
    assert is_right(results["1"], expected(1))  # type: ignore[arg-type]  # a tensor
    assert is_right(results["2"], expected(2))  # type: ignore[arg-type]


def test_what_launches_depend_on_has_graphs_of_its_own() -> None:
    """With an unlimited window the launches depend on the longest candidate, so two batches of one size need two
    buckets.
    """
    lab = Lab.of(window=None)
    for number in (0, 1, 0, 1):
        assert is_right(lab.score(ALIKE[number]), expected(number, None))

    assert len(lab.runner) == 2


def test_the_graph_that_was_not_used_for_longest_makes_room() -> None:
    """A graph that was dropped is captured again when its bucket is needed again."""
    lab = Lab.of(max_graphs=2)
    sizes = [packed([5], [[9] * count]) for count in (1, 12, 24)]
    right = [launched(batch) for batch in sizes]
    for number in (0, 1, 0, 2, 0, 1):
        assert is_right(lab.score(sizes[number]), right[number])

    assert (len(lab.runner), lab.device.captures, lab.device.released) == (2, 4, 2)


def test_usual_requests_wait_for_no_capture() -> None:
    """The buckets of twenty candidates with a short query, and with a longer one, are captured in advance."""
    lab = Lab.of(max_rows=600)
    lab.runner.capture_usual(600)
    captures = lab.device.captures
    for batch in (packed([5], [[25] * 20]), packed([20], [[10, 40] * 10])):
        assert is_right(lab.score(batch), launched(batch))

    assert (lab.device.captures, len(lab.runner)) == (captures, captures) == (2, 2)


def test_a_failed_capture_ends_those_of_usual_requests() -> None:
    lab = Lab.of(max_rows=600)
    lab.device.fails = torch.OutOfMemoryError("CUDA out of memory")
    lab.runner.capture_usual(600)

    assert lab.device.captures == 1


def test_no_graph_is_captured_that_no_batch_would_use() -> None:
    """A lower limit of rows a batch leaves the memory of larger graphs to other things."""
    lab = Lab.of(max_rows=1000)
    lab.runner.capture_usual(500)
    few = lab.device.captures
    assert lab.runner.compute(packed([5], [[25] * 17])) is not None
    assert lab.device.captures == few > 0

    lab.runner.capture_usual(1000)
    assert lab.device.captures > few


def test_memory_that_is_short_even_without_graphs_does_not_end_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """A request's batch would be split when memory runs out, so no request needs the largest bucket."""
    lab = Lab.of(max_rows=600)
    lab.device.fails = torch.OutOfMemoryError("CUDA out of memory")
    copy = lab.device.copy

    def short_copy(to: Tensor, source: Tensor) -> None:
        if lab.device.captures:
            raise torch.OutOfMemoryError("CUDA out of memory, without a graph")
        copy(to, source)

    lab.device.copy = short_copy  # type: ignore[method-assign]  # a hook
    lab.runner.capture_usual(600)

    assert lab.device.captures == 1
    assert "out of memory" in (lab.runner.obstacle or "")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_service_that_must_have_graphs_does_not_start_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first capture shows whether graphs can be captured at all."""
    device = RecordingDevice()
    device.fails = torch.OutOfMemoryError("CUDA out of memory")
    serve_from(device, monkeypatch)
    monkeypatch.setattr(cross_encoder, "PackedBuckets", partial(PackedBuckets, max_rows=600))
    monkeypatch.setattr(assembly, "prepare", lambda model, **options: prepare(model, **options | {"graphs": device}))
    model = loaded(random_scorer(CrossEncoder(scorer().config), seed=0))
    settings = Settings(device="cpu", cuda_graphs="on")

    with pytest.raises(BadSetting, match=r"cuda_graphs cannot be on for .*CUDA out of memory"):
        assembly.add_text_scorer(Engine(CPU), model, torch.float32, settings)


def test_a_large_batch_is_left_to_the_caller() -> None:
    """A batch too large for a bucket is neither scored nor captured, and later batches are."""
    lab = Lab.of(max_rows=176)

    assert lab.runner.compute(packed([5], [[30] * 6])) is None
    assert lab.device.captures == 0
    assert is_right(lab.score(ALIKE[0]), expected(0))


@pytest.mark.parametrize(
    ("error", "how_long", "remedy"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "for a minute", "a lower max_batch_rows"),
        (RuntimeError("operation not permitted\nmore"), "until the service is restarted", "report it"),
    ],
)
def test_a_capture_that_fails_costs_no_request(
    error: RuntimeError, how_long: str, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is scored, one warning says what to do, and graphs that were captured before are still replayed."""
    lab = Lab.of()
    lab.score(ALIKE[0])
    lab.device.fails = error
    others = [packed([5], [[9] * count]) for count in (1, 24)]
    for batch in (*others, ALIKE[1]):
        assert is_right(lab.score(batch), launched(batch))

    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"kernel by kernel {how_long}: {remedy}" in record.message
    assert "set cuda_graphs to off" in record.message
    assert lab.runner.obstacle is not None
    assert str(error).splitlines()[0] in lab.runner.obstacle
    assert (len(lab.runner), lab.device.captures, lab.device.replays) == (1, 2, 2)


def test_a_capture_for_which_memory_was_short_is_tried_again() -> None:
    """The runner tries a minute after each failure, and clears the obstacle once a capture succeeds."""
    clock = Clock()
    lab = Lab.of(clock=clock)
    lab.device.fails = torch.OutOfMemoryError("CUDA out of memory")
    seen = []
    for now in (0.0, 59.0, 60.0, 119.0):
        clock.now = now
        assert is_right(lab.score(ALIKE[0]), expected(0))
        seen.append(lab.device.captures)
    assert seen == [1, 1, 2, 2]
    assert lab.runner.obstacle is not None

    clock.now, lab.device.fails = 120.0, None
    for number in (0, 1):
        assert is_right(lab.score(ALIKE[number]), expected(number))
    assert (lab.runner.obstacle, len(lab.runner), lab.device.captures, lab.device.replays) == (None, 1, 3, 2)


def test_a_capture_that_failed_otherwise_is_not_tried_again() -> None:
    """An error other than lack of memory would return each time; it also ends the attempts after lack of memory."""
    clock = Clock()
    lab = Lab.of(clock=clock)
    for now, error in ((0.0, torch.OutOfMemoryError("CUDA out of memory")), (60.0, RuntimeError("not permitted"))):
        clock.now, lab.device.fails = now, error
        lab.score(ALIKE[0])
    clock.now, lab.device.fails = 1e9, None

    assert is_right(lab.score(ALIKE[0]), expected(0))
    assert lab.device.captures == 2
    assert "not permitted" in (lab.runner.obstacle or "")


def test_memory_that_is_short_within_a_failed_capture_is_what_is_told() -> None:
    """The error that CUDA raises at the end of a capture hides the lack of memory that ended it."""
    late = RuntimeError("operation failed due to a previous error during capture")
    late.__context__ = torch.OutOfMemoryError("CUDA out of memory")

    assert graphs._is_out_of_memory(late)
    assert not graphs._is_out_of_memory(RuntimeError("other"))


def test_a_cross_encoder_scores_through_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long candidate is scored by its best passage; where gradients are required, kernels are launched instead."""
    config = replace(scorer().config, max_tokens=48, max_query_tokens=20)
    model = random_scorer(CrossEncoder(config), seed=0)
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, length) for length in (9, 100, 0)]])
    right = model(batch).detach()
    device = RecordingDevice()
    serve_from(device, monkeypatch)
    prepared = prepare(model, device=CPU, dtype=torch.float32, graphs=device)
    with torch.inference_mode():
        results = [prepared(batch) for _ in range(2)]
        with_passages, best = prepared.begin_passages(batch)()
    replays = device.replays
    prepared(batch)

    assert torch.equal(with_passages, results[0])
    assert len(best) == len(right)
    assert all(is_right(scores, right) for scores in results)
    assert (replays, device.replays) == (3, 3)
    assert (prepared.why_no_kernels, prepared.why_no_graphs(), prepared.graph_bytes) == (None, None, 1000)
    assert {part.execution.graphs for part in model.modules() if isinstance(part, LayerNorm)} == {True}


def test_a_batch_goes_over_in_one_transfer() -> None:
    """Also without a graph, the tokens and the plan's tables share one allocation."""
    batch = ALIKE[0]
    inputs = PackedInputs.of(batch, plan_of(CudaPlan, RecordingDevice(), batch.rows, 4), CPU)
    assert isinstance(inputs.plan, CudaPlan)
    there = [inputs.numbers, *inputs.plan._tables]

    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1
    assert inputs.numbers.tolist() == batch.numbers.tolist()
