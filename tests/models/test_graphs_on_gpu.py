"""CUDA graphs on a GPU: the runner that test_graphs.py tests on a recording device, with real captures and replays."""

import random
import threading

import pytest
import torch
from support.models import random_ids, score_batch, tiny_encoder_config
from support.on_gpu import GPU, OBSTACLE
from support.tokenizer import CLS_ID, SEP_ID
from torch import Tensor
from torch.nn.functional import gelu

from bandrank.models.architectures import CrossEncoder
from bandrank.models.architectures.cross_encoder import CrossEncoderConfig
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.execution import Execution
from bandrank.models.layers.head import ScoreHead
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.packing import PackedTokens, pack
from bandrank.models.layers.patterns import sparse
from bandrank.models.packed_buckets import PackedBuckets
from bandrank.models.prepared import prepare

pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))

# Numbers are drawn on the host: before torch 2.12 the card draws none after a failed capture.
SHAPES = [[9] * 13, [75, 0, 1, 2, 0, 0, 40, 1], [10] * 12, [300, 40], [60] * 50, [7] * 15]


@pytest.fixture
def runner() -> GraphRunner[PackedTokens]:
    """Returns the runner of a cross-encoder of three layers."""
    vocab = tiny_encoder_config().vocab_size
    encoder = EncoderConfig(vocab, 384, 3, 12, 1536, 512)
    config = CrossEncoderConfig(encoder=encoder, cls_id=CLS_ID, sep_id=SEP_ID, pattern=sparse(4))
    torch.manual_seed(0)
    scorer = prepare(CrossEncoder(config), device=GPU, dtype=torch.float16, graphs=True)
    assert scorer.why_no_graphs() is None
    assert isinstance(scorer.replay, GraphRunner)
    return scorer.replay


def packed(lengths: list[int], seed: int) -> PackedTokens:
    """Returns a packed batch of one query and candidates of these lengths, with random tokens."""
    rng = random.Random(seed)
    batch = score_batch([random_ids(rng, 5)], [[random_ids(rng, length) for length in lengths]])
    return pack(batch, sparse(4), cls_id=CLS_ID, sentence_token=None)


BATCHES = [packed(lengths, seed) for seed, lengths in enumerate(SHAPES)]


def scores(runner: GraphRunner[PackedTokens], number: int, *, capture: bool = True) -> Tensor:
    """Returns the scores of one of the batches."""
    result = runner.compute(BATCHES[number], capture=capture)
    assert result is not None
    return result


def test_replays_have_the_bits_of_launches(runner: GraphRunner[PackedTokens]) -> None:
    """A hundred replays of different batches follow each other without waiting."""
    expected = [scores(runner, number, capture=False) for number in range(len(BATCHES))]
    replayed = [(turn % len(BATCHES), scores(runner, turn % len(BATCHES))) for turn in range(100)]

    assert all(torch.equal(each, expected[number]) for number, each in replayed)
    assert runner.obstacle is None
    assert 1 < len(runner) < len(BATCHES)
    assert runner.graph_bytes > 0


def test_threads_on_streams_of_their_own_do_not_meet(runner: GraphRunner[PackedTokens]) -> None:
    """Two threads, each on its own stream, replay the same graphs."""
    expected = [scores(runner, number) for number in range(len(BATCHES))]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def score(offset: int) -> None:
        stream = torch.cuda.Stream(GPU)  # type: ignore[no-untyped-call]  # torch leaves it bare
        with torch.cuda.stream(stream):
            for turn in range(50):
                number = (turn + offset) % len(BATCHES)
                if not torch.equal(scores(runner, number), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=score, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_failed_capture_leaves_the_stream_and_the_device_as_they_were(
    runner: GraphRunner[PackedTokens], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that waits for the device ends the capture; the batch is still scored, and existing graphs are still
    replayed.
    """
    expected = [scores(runner, number, capture=False) for number in (0, 4)]
    scores(runner, 0)
    buckets = runner._buckets
    assert isinstance(buckets, PackedBuckets)
    compute, calls = buckets._compute, []

    def waits(inputs: object) -> Tensor:
        calls.append(1)
        result = compute(inputs)  # type: ignore[arg-type]  # as the runner makes them
        if torch.cuda.is_current_stream_capturing():
            result.sum().item()
        return result

    monkeypatch.setattr(buckets, "_compute", waits)
    before = torch.cuda.current_stream(GPU)

    assert torch.equal(scores(runner, 4), expected[1])
    assert torch.cuda.current_stream(GPU) == before
    assert runner.obstacle is not None
    assert torch.equal(scores(runner, 0), expected[0])


def test_gelu_within_a_product_is_its_tanh_form() -> None:
    """The tolerances are bfloat16's rounding of the result and, for inputs up to 4, the error of tanh.approx, 2 ** -11
    (PTX manual).
    """
    torch.manual_seed(0)
    layer = Linear(64, 96).to(GPU, torch.bfloat16)
    layer.prepare_for(Execution(graphs=True))
    rows = (4 * torch.randn(200, 64)).to(GPU, torch.bfloat16)
    with torch.inference_mode():
        exact = rows.double() @ layer.weight.double().T + layer.bias.double()

        torch.testing.assert_close(
            layer(rows, "gelu").double(), gelu(exact, approximate="tanh"), rtol=2**-8, atol=2**-10
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_head_rounds_only_its_weights(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = ScoreHead(EncoderConfig(100, 384, 1, 12, 1536, 512)).to(GPU)
    rows = torch.randn(100, 384).to(GPU, dtype)
    with torch.inference_mode():
        exact = head(rows)
        head.prepare_for(Execution(dtype=dtype))
        rounded = head(rows)

    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0, atol=20 * torch.finfo(dtype).eps / 384**0.5)
