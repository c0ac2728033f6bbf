"""Stored candidates scored from CUDA graphs: the same bits as by launches, whatever fills a bucket or ran before."""

from dataclasses import replace

import pytest
import torch
from emulation.compiled import EmulationError, needs_compiler
from emulation.graphs import ExactProducts, RecordingDevice
from emulation.mistakes import Mistake, plant_in_modules
from support.cached import VARIANTS, cached, mix_encoder
from support.cached_lab import CACHED_MODULES, REAL, is_near, runner_of, scored, served
from support.graph_lab import serve_from
from support.layouts import CPU
from support.tokenizer import vocab_size

from bandrank.models.architectures import MixEncoder
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.modernbert import ModernBertConfig
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.linear import Linear
from bandrank.models.prepared import prepare
from bandrank.models.ragged import Ragged

pytestmark = needs_compiler


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> RecordingDevice:
    """A recording device on which the kernels of an encoder run."""
    device = RecordingDevice()
    serve_from(device, monkeypatch)
    return device


def alike(scorer: MixEncoder) -> list[ScoreBatch]:
    """Returns batches of one bucket. The largest comes first, so that its rows remain in those that the others do not
    use.
    """
    return [
        cached(scorer, [tokens], [count], seed) for seed, (tokens, count) in enumerate([(16, 64), (2, 33), (9, 40)])
    ]


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_batches_of_a_bucket_share_a_graph_and_have_the_bits_of_launches(variant: str, device: RecordingDevice) -> None:
    """Batches run one after the other, and again; scores without buckets differ only by rounding."""
    scorer = mix_encoder(variant)
    runner, batches = runner_of(scorer, device), alike(scorer)
    for number in (0, 1, 2, 1, 0):
        scores = scored(runner, batches[number])
        assert is_near(scores, scorer.score(batches[number]))
        assert torch.equal(scored(runner, batches[number], capture=False), scores)

    assert (len(runner), device.captures, device.replays) == (1, 1, 5)


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_score_depends_on_neither_company_nor_bucket(variant: str, device: RecordingDevice) -> None:
    """With exact products, a candidate alone has the same bits as among others in larger buckets."""
    scorer = mix_encoder(variant)
    whole = cached(scorer, [11], [300])
    with ExactProducts():
        right = scored(runner_of(scorer, device), whole)
        for count in (1, 32, 33, 130):
            part = whole.of_query(0, slice(count))
            for _ in range(2):
                assert torch.equal(scored(runner_of(scorer, device), part), right[:count])

    assert is_near(right, scorer.score(whole))


@torch.inference_mode()
def test_queries_of_a_length_share_tables_and_not_their_ids(device: RecordingDevice) -> None:
    """Tables are kept by length; queries of equal length follow each other, with others between them."""
    scorer = mix_encoder()
    runner = runner_of(scorer, device)
    batches = [cached(scorer, [tokens], [5], seed) for seed, tokens in enumerate((7, 7, 9, 7))]
    for batch in batches * 2:
        assert is_near(scored(runner, batch), scorer.score(batch))

    assert runner._buckets._layout.cache_info().misses == 2  # type: ignore[attr-defined]  # those of this scorer


@torch.inference_mode()
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, 1e30])
def test_what_is_in_unused_rows_reaches_no_score(garbage: float, device: RecordingDevice) -> None:
    """The bucket has rows for more candidates than the batch; these rows are filled with garbage."""
    scorer = mix_encoder("c")
    runner, batch = runner_of(scorer, device), alike(scorer)[1]
    right = scored(runner, batch)
    runner._inputs.view(torch.float32).fill_(garbage)

    assert torch.equal(scored(runner, batch), right)


@torch.inference_mode()
def test_batches_in_flight_do_not_meet(device: RecordingDevice) -> None:
    """All batches are enqueued in two buckets before the first has run; no buffer is overwritten before it is read."""
    scorer = mix_encoder()
    batches = [*alike(scorer), cached(scorer, [20], [5]), *alike(scorer)]
    right = [scorer.score(batch) for batch in batches]
    device.running = "late"
    runner = runner_of(scorer, device)
    for _ in range(2):
        scores = [scored(runner, batch) for batch in batches]
        device.drain()
        assert all(map(is_near, scores, right))


@torch.inference_mode()
def test_representations_of_another_dtype_have_a_graph_of_their_own(device: RecordingDevice) -> None:
    scorer = mix_encoder("c")
    runner, batch = runner_of(scorer, device), alike(scorer)[0]
    values = batch.candidates.values.half()
    halves, rounded = (
        ScoreBatch(batch.queries, Ragged(each, batch.candidates.cu_seqlens), batch.cu_candidates)
        for each in (values, values.float())
    )
    for _ in range(2):
        assert torch.equal(scored(runner, halves), scored(runner, rounded))

    assert len(runner) == 2


@torch.inference_mode()
def test_a_scorer_replays_one_query_after_the_other(device: RecordingDevice) -> None:
    """Each query has the bits that it has alone; a query without candidates has no replay."""
    scorer = mix_encoder()
    prepared = served(scorer, device)
    batch = cached(scorer, [9, 5, 20, 7], [40, 3, 0, 1])
    scores = prepared.begin(batch)()
    replays = device.replays
    alone = [prepared.score(batch.of_query(query, group)) for query, group in batch.groups()]

    assert is_near(scores, scorer.score(batch))
    assert torch.equal(scores, torch.cat(alone))
    assert (replays, device.replays) == (3, 6)
    assert (prepared.why_no_kernels, prepared.why_no_graphs()) == (None, None)


@torch.inference_mode()
def test_what_has_no_bucket_is_launched(device: RecordingDevice) -> None:
    """Too many candidates, float64 numbers, a query without tokens and a batch without candidates have no bucket."""
    scorer = mix_encoder("c")
    runner = runner_of(scorer, device, max_rows=512)
    batch = cached(scorer, [9], [256])
    doubles = Ragged(batch.candidates.values.double(), batch.candidates.cu_seqlens)
    without = ScoreBatch(Ragged.from_token_ids([[]]), batch.candidates, batch.cu_candidates)
    prepared = served(scorer, device)

    assert runner.compute(batch) is not None
    assert runner.compute(cached(scorer, [9], [257])) is None
    assert runner.compute(ScoreBatch(batch.queries, doubles, batch.cu_candidates)) is None
    assert runner.compute(without) is None
    assert prepared.score(without).shape == (256,)
    assert prepared.score(cached(scorer, [9], [0])).shape == (0,)
    assert (device.captures, device.replays) == (1, 1)


def test_an_encoder_with_local_layers_is_not_captured(device: RecordingDevice) -> None:
    """The attention plan of such an encoder has no bucket."""
    encoder = ModernBertConfig(vocab_size(), 64, 3, 2, 128, 512, windows=(64,))
    scorer = MixEncoder(replace(mix_encoder("c").config, encoder=encoder))
    prepared = prepare(scorer, device=CPU, dtype=torch.float32, graphs=device)

    assert prepared.why_no_graphs() == "its encoder has local layers"


@torch.inference_mode()
def test_usual_requests_wait_for_no_capture(device: RecordingDevice) -> None:
    """The buckets of short and longer queries with few or many candidates are captured ahead of requests."""
    scorer = mix_encoder()
    runner = runner_of(scorer, device, max_rows=128)
    runner.capture_usual(128)
    captures = device.captures
    for tokens, count in ((5, 3), (12, 128), (30, 70)):
        batch = cached(scorer, [tokens], [count])
        assert is_near(scored(runner, batch), scorer.score(batch))

    assert (captures, device.captures, len(runner)) == (6, 6, 6)


@torch.inference_mode()
def test_stored_representations_keep_the_exact_gelu(device: RecordingDevice) -> None:
    """Other machines read what a GPU stores, so its form of GELU does not depend on graphs."""
    copy = MixEncoder(mix_encoder("c").config)
    prepare(copy, device=CPU, dtype=torch.float16, graphs=device)

    assert not any(layer._gelu_in_product for layer in copy.modules() if isinstance(layer, Linear))


def test_nothing_is_folded_that_is_not_used(device: RecordingDevice) -> None:
    """The last layer of a query reads more rows than [CLS], so its projections are not folded."""
    copy = MixEncoder(mix_encoder("c").config)
    prepare(copy, device=CPU, dtype=torch.float32, graphs=device)

    assert copy.encoder.layer(-1)._folded is None


MISTAKES = [
    Mistake("unused-rows", "0.0"),
    # The batch's size counts in place of the bucket's, or different buckets count as one.
    Mistake("room", "$[: len($) // 2]"),
    Mistake("cached-bucket", "$[:1]"),
    Mistake("cached-bucket", "(tokens, count)"),
]


@pytest.mark.parametrize(
    "mistake", [None, *MISTAKES], ids=lambda mistake: f"{mistake.marker}: {mistake.instead}" if mistake else "none"
)
@torch.inference_mode()
def test_a_mistake_is_noticed(mistake: Mistake | None, device: RecordingDevice) -> None:
    """Batches of several buckets run in turns, and some buckets differ in one size only. Without a mistake all scores
    are right.
    """
    scorer = mix_encoder("b")
    house = REAL if mistake is None else plant_in_modules(CACHED_MODULES, mistake)
    runner: GraphRunner[ScoreBatch] = runner_of(scorer, device, house)
    small, large = cached(scorer, [5], [3]), cached(scorer, [30], [50])
    halves = ScoreBatch(
        small.queries,
        Ragged(small.candidates.values.half(), small.candidates.cu_seqlens, small.candidates.words),
        small.cu_candidates,
    )
    batches = [small, cached(scorer, [3], [20]), cached(scorer, [30], [3]), large, halves, small]
    try:
        right = all(is_near(scored(runner, batch), scorer.score(batch)) for batch in batches)
    except (EmulationError, ValueError, RuntimeError, IndexError):
        right = False

    assert right is (mistake is None)
