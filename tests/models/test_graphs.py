"""Batches replayed from graphs: the bits of launches, whatever is in the bucket, and whatever came before."""

import random
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import ModuleType

import pytest
import torch
from support.emulation import EmulationError, needs_compiler
from support.layouts import CPU
from support.mistakes import plant_in_modules
from support.models import random_ids, random_scorer, score_batch, tiny_encoder_config
from support.recorded_graphs import ExactProducts, RecordingDevice, Running, Stream
from support.tokenizer import CLS_ID, SEP_ID
from torch import Tensor

from bandrank.models import graphs
from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.norm import LayerNorm
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import sparse
from bandrank_kernels.windowed_attention import AttentionPlan, Capacity, PackedRows, interface
from bandrank_kernels.windowed_attention.cuda.plan import CudaPlan

pytestmark = needs_compiler

# In the order of their imports.
MODULES = (
    "bandrank_kernels.windowed_attention.capacity",
    "bandrank_kernels.windowed_attention.cuda.forward",
    "bandrank_kernels.windowed_attention.cuda.plan",
    "bandrank_kernels.staging",
    "bandrank.models.graphs",
)
House = dict[str, ModuleType]
REAL: House = {name: sys.modules[name] for name in MODULES}
# Rounding of products whose rows go together in other numbers; scores are of the order of 1.
ROUNDING = 1e-5


@cache
def scorer(window: int | None = 4) -> CrossEncoder:
    """One layer and one for [CLS] alone, in heads that there are kernels for."""
    config = CrossEncoderConfig(
        encoder=replace(tiny_encoder_config(), hidden_size=64, num_heads=2),
        cls_id=CLS_ID,
        sep_id=SEP_ID,
        pattern=sparse(window),
        max_tokens=512,
        max_query_tokens=64,
    )
    return random_scorer(CrossEncoder(config), seed=0).requires_grad_(requires_grad=False)


def packed(queries: Sequence[int], candidates: Sequence[Sequence[int]], seed: int = 0) -> PackedTokens:
    """Random tokens in texts of these lengths, [SEP] not counted."""
    rng = random.Random(seed)
    batch = score_batch(
        [random_ids(rng, length) for length in queries],
        [[random_ids(rng, length) for length in group] for group in candidates],
    )
    return pack(batch, scorer().config.pattern, cls_id=CLS_ID, sentence_token=None)


# Of one bucket, 145 to 176 rows and 9 to 16 candidates: of one length, of lengths that fill no tile or several, with a
# query each, and with the most candidates.
ALIKE = [
    packed([5], [[9] * 13], seed=1),
    packed([3, 4], [[75, 0, 1, 2, 0, 0], [40, 1, 2, 3]], seed=2),
    packed([4] * 9, [[10]] * 9, seed=3),
    packed([11], [[7] * 15], seed=4),
]
SMALL = packed([5], [[9, 2]])


@dataclass
class Lab:
    """A runner, its device, and what it should give. house: the modules that it is made of."""

    device: RecordingDevice
    runner: GraphRunner
    window: int | None

    @classmethod
    def of(cls, house: House = REAL, *, running: Running = "at once", window: int | None = 4, **limits: int) -> "Lab":
        device = RecordingDevice(running)
        plan_class = house["bandrank_kernels.windowed_attention.cuda.plan"].CudaPlan

        def plan(rows: PackedRows, capacity: Capacity) -> AttentionPlan:
            return plan_of(plan_class, device, rows, window, capacity)

        house["bandrank.models.graphs"].Capacity = house[MODULES[0]].Capacity
        runner = house["bandrank.models.graphs"].GraphRunner(scorer(window).compute, plan, device, **limits)
        return cls(device, runner, window)

    def score(self, batch: PackedTokens) -> Tensor:
        scores = self.runner.score(batch)
        assert scores is not None
        return scores


def plan_of(
    plan_class: type[CudaPlan],
    device: RecordingDevice,
    rows: PackedRows,
    window: int | None,
    capacity: Capacity | None = None,
) -> CudaPlan:
    """As for float32 on a card with tensor cores."""
    return plan_class(
        rows,
        sparse(window),
        device=CPU,
        dtype=torch.float32,
        head_dim=32,
        capability=(8, 0),
        capacity=capacity,
        run=device.launch,
    )


@torch.inference_mode()
def launched(batch: PackedTokens, window: int | None = 4) -> Tensor:
    """The scores without bucket and graph."""
    plan = plan_of(CudaPlan, RecordingDevice(), batch.rows, window)
    return scorer(window).compute(PackedInputs.of(batch, plan, CPU))


@cache
def expected(number: int, window: int | None = 4) -> Tensor:
    """Of the batches that are alike."""
    return launched(ALIKE[number], window)


def is_right(found: Tensor, right: Tensor) -> bool:
    """But for the rounding of products."""
    return found.shape == right.shape and bool(((found - right).abs() <= ROUNDING).all())


def test_batches_of_a_bucket_share_a_graph_and_have_the_bits_of_launches() -> None:
    """One after the other, and again; the same as without buckets but for rounding."""
    lab = Lab.of()
    for number in (0, 1, 2, 3, 0):
        found = lab.score(ALIKE[number])
        assert is_right(found, expected(number))
        again = lab.runner.score(ALIKE[number], capture=False)
        assert again is not None
        assert torch.equal(again, found)

    assert (len(lab.runner), lab.device.captures, lab.device.replays) == (1, 1, 5)
    assert lab.runner.graph_bytes == 1000


def test_a_score_depends_on_neither_company_nor_bucket() -> None:
    """To the bit, where products do not: alone, among others of its bucket, and in larger ones."""
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


@pytest.mark.parametrize("running", ["late", "copies first"])
def test_batches_in_flight_do_not_meet(running: Running) -> None:
    """Five enqueued before the first has run, in two buckets: no buffer is written that is still to be read."""
    lab = Lab.of(running=running)
    batches = [ALIKE[0], ALIKE[1], SMALL, ALIKE[2], ALIKE[3], SMALL]
    right = [launched(batch) for batch in batches]
    for _ in range(2):
        found = [lab.score(batch) for batch in batches]
        lab.device.drain()
        assert all(map(is_right, found, right))


def test_a_transfer_waits_for_nothing_that_is_computed() -> None:
    """With nothing run of what was enqueued, the host goes on to the third batch, for which it needs the first one's
    buffer back: for that no score has to be computed, and the second and third inputs are over.
    """
    lab = Lab.of(running="late")
    lab.score(ALIKE[0])
    lab.device.drain()
    before = lab.device.replays
    for number in (1, 2):
        lab.score(ALIKE[number])
    lab.device.copies.run()
    assert lab.device.replays == before

    lab.score(ALIKE[3])
    assert lab.device.replays == before


def test_two_streams_take_turns() -> None:
    """The second waits on the device, whichever the device would rather run."""
    lab, other = Lab.of(), Stream()
    lab.score(ALIKE[0])
    lab.device.running = "late"
    first = lab.score(ALIKE[1])
    with lab.device.on(other):
        second = lab.score(ALIKE[2])
    lab.device.alternate(other)

    assert is_right(first, expected(1))
    assert is_right(second, expected(2))


def test_two_threads_take_turns() -> None:
    """The second does not fill the inputs before the first has enqueued all its work."""
    lab = Lab.of()
    lab.score(ALIKE[0])
    inside, entered = threading.Event(), threading.Event()
    copy, found = lab.device.copy, {}

    def slow_copy(to: Tensor, source: Tensor) -> None:
        if threading.current_thread().name == "second":
            entered.set()
        elif not inside.is_set():
            inside.set()
            found["met"] = entered.wait(0.2)
        copy(to, source)

    def score(number: int) -> None:
        found[str(number)] = lab.score(ALIKE[number])

    lab.device.copy = slow_copy  # type: ignore[method-assign]  # a hook
    first, second = (threading.Thread(target=score, args=(n,), name=name) for n, name in ((1, "first"), (2, "second")))
    first.start()
    inside.wait()
    second.start()
    first.join()
    second.join()

    assert found["met"] is False
    assert is_right(found["1"], expected(1))  # type: ignore[arg-type]  # a tensor
    assert is_right(found["2"], expected(2))  # type: ignore[arg-type]


def test_what_launches_depend_on_has_graphs_of_its_own() -> None:
    """Without a limit to the window the longest candidate is one: two buckets of the same size."""
    lab = Lab.of(window=None)
    for number in (0, 1, 0, 1):
        assert is_right(lab.score(ALIKE[number]), expected(number, None))

    assert len(lab.runner) == 2


def test_the_graph_that_was_not_used_for_longest_makes_room() -> None:
    """And is captured again when its turn comes."""
    lab = Lab.of(most_graphs=2)
    sizes = [packed([5], [[9] * count]) for count in (1, 12, 24)]
    right = [launched(batch) for batch in sizes]
    for number in (0, 1, 0, 2, 0, 1):
        assert is_right(lab.score(sizes[number]), right[number])

    assert (len(lab.runner), lab.device.captures, lab.device.released) == (2, 4, 2)


def test_a_large_batch_is_left_to_the_caller() -> None:
    """It is launched as it is."""
    lab = Lab.of(most_rows=176)

    assert lab.runner.score(packed([5], [[30] * 6])) is None
    assert lab.device.captures == 0
    assert is_right(lab.score(ALIKE[0]), expected(0))


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "a lower BANDRANK_MAX_BATCH_TOKENS"),
        (RuntimeError("operation not permitted\nmore"), "report it"),
    ],
)
def test_a_capture_that_fails_costs_no_request(
    error: RuntimeError, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so and what to do; nothing is captured any more, what was captured is used."""
    lab = Lab.of()
    lab.score(ALIKE[0])
    lab.device.fails = error
    others = [packed([5], [[9] * count]) for count in (1, 24)]
    for batch in (*others, ALIKE[1]):
        assert is_right(lab.score(batch), launched(batch))

    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert remedy in record.message
    assert "BANDRANK_CUDA_GRAPHS=off" in record.message
    assert lab.runner.obstacle is not None
    assert str(error).splitlines()[0] in lab.runner.obstacle
    assert (len(lab.runner), lab.device.captures, lab.device.replays) == (1, 2, 2)


def test_memory_that_is_short_within_a_failed_capture_is_what_is_told() -> None:
    """What CUDA says at the end of a capture hides why it ended."""
    late = RuntimeError("operation failed due to a previous error during capture")
    late.__context__ = torch.OutOfMemoryError("CUDA out of memory")

    assert graphs._is_out_of_memory(late)
    assert not graphs._is_out_of_memory(RuntimeError("other"))


def test_a_cross_encoder_scores_through_its_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long candidates by their best passage; launches where a gradient is wanted."""
    config = replace(scorer().config, max_tokens=48, max_query_tokens=20)
    model = random_scorer(CrossEncoder(config), seed=0)
    rng = random.Random(0)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, length) for length in (9, 100, 0)]])
    right = model(batch).detach()
    device = RecordingDevice()
    monkeypatch.setattr(interface, "choose_backend", lambda *_, **__: "cuda")
    monkeypatch.setattr(interface, "device_capability", lambda _: (8, 0))
    monkeypatch.setattr(interface, "CudaPlan", partial(CudaPlan, run=device.launch))
    assert model.why_no_graphs() == "they are switched off"
    model.replay_on(device)
    with torch.inference_mode():
        found = [model(batch) for _ in range(2)]
    replays = device.replays
    model(batch)

    assert all(is_right(scores, right) for scores in found)
    assert (replays, device.replays) == (2, 2)
    assert model.why_no_graphs() is None
    assert model.graph_bytes == 1000
    assert {part.fused_from for part in model.modules() if isinstance(part, LayerNorm)} == {0}


def test_a_batch_goes_over_in_one_transfer() -> None:
    """Without a graph too: its tokens and its plan's tables share one allocation."""
    batch = ALIKE[0]
    inputs = PackedInputs.of(batch, plan_of(CudaPlan, RecordingDevice(), batch.rows, 4), CPU)
    assert isinstance(inputs.plan, CudaPlan)
    there = [inputs.ids, inputs.positions, inputs.token_types, *inputs.plan._tables]

    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1
    assert inputs.ids.tolist() == batch.ids.tolist()


def survives(house: House) -> bool:
    """Whether a runner of these modules gets batches right, in each way that a device may run."""

    def buckets_are_apart() -> bool:
        lab = Lab.of(house)
        return is_right(lab.score(SMALL), launched(SMALL)) and is_right(lab.score(ALIKE[0]), expected(0))

    def all_right(lab: Lab, numbers: Sequence[int]) -> bool:
        found = [lab.score(ALIKE[number]) for number in numbers]
        lab.device.drain()
        return all(is_right(scores, expected(n, lab.window)) for scores, n in zip(found, numbers, strict=True))

    def on_two_streams() -> bool:
        lab, other = Lab.of(house), Stream()
        lab.score(ALIKE[0])
        lab.device.running = "late"
        first = lab.score(ALIKE[1])
        with lab.device.on(other):
            second = lab.score(ALIKE[2])
        lab.device.alternate(other)
        return is_right(first, expected(1)) and is_right(second, expected(2))

    trials: list[Callable[[], bool]] = [
        lambda: all_right(Lab.of(house), (0, 1, 2, 3)),
        lambda: all_right(Lab.of(house, running="late"), (3, 1, 2, 0)),
        lambda: all_right(Lab.of(house, running="copies first"), (0, 1, 2, 3, 0)),
        lambda: all_right(Lab.of(house, window=None), (0, 1)),
        on_two_streams,
        buckets_are_apart,
    ]
    try:
        return all(trial() for trial in trials)
    except (EmulationError, ValueError, RuntimeError, IndexError):
        return False


MISTAKES = [
    # Inputs that are not filled anew, or are read elsewhere; results that the next batch overwrites.
    ("self._staging.refill(tables, found.inputs)", "pass"),
    ("plan.bind(of_plan)", "plan"),
    ("self._device.copy(scores, bucket.run()[: len(scores)])", "scores = bucket.run()[: len(scores)]"),
    # Sizes of the batch in place of the bucket's; buckets that are taken for one; rows in the wrong place.
    ("capacity.num_tiles(variant.tile_rows) if capacity else None", "None"),
    ("capacity.num_candidate_tiles(TILE_ROWS) if capacity else None", "None"),
    ("// tile_rows + 2 * self.num_candidates", "// tile_rows + self.num_candidates // 2"),
    ("capacity.num_rows, capacity.num_candidates, plan.signature", "capacity.num_rows, capacity.num_candidates"),
    ("capacity.num_rows, capacity.num_candidates, plan.signature", "plan.signature"),
    ("np.pad(part, (0, fill))", "np.pad(part, (fill, 0))"),
    # Waits: of the host for its buffer, of a transfer for the landing buffer, of the inputs for the transfer, of a
    # batch for the one before.
    ("slot.arrived.synchronize()", "pass"),
    ("slot.read.wait()", "pass"),
    ("slot.read.record()", "pass"),
    ("slot.arrived.wait()", "pass"),
    ("slot.arrived.record()", "pass"),
    ("self._idle.wait()", "pass"),
    ("self._idle.record()", "pass"),
]


def test_without_a_mistake_all_is_right() -> None:
    """What the next test looks for comes of the mistakes."""
    assert survives(plant_in_modules(MODULES, "MOST_GRAPHS = 64", "MOST_GRAPHS = 63"))


@pytest.mark.parametrize(("text", "instead"), MISTAKES)
def test_a_mistake_is_found(text: str, instead: str) -> None:
    """A stale pointer, inputs of another batch, a grid of another batch, a wait that is missing."""
    assert not survives(plant_in_modules(MODULES, text, instead))
