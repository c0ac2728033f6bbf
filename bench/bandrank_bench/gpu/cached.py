"""A MixEncoder of mix-b's size, with random weights: 1,000 stored candidates per request, or 100 that are encoded."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from bandrank.models.architectures.mix_encoder import MixEncoder, MixEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.lexical import LexicalConfig
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.ragged import Ragged
from bandrank.models.words import Words
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_bench.gpu.whole_model import DRY_SIZE, QUERY_TOKENS, SIZE, VOCAB, back_to_back, eager, graphed
from bandrank_kernels.arrays import offsets

NUM_CANDIDATES, DRY_CANDIDATES = 1000, 3
NEW_TOKENS = 75  # of a candidate to encode


def cases(lab: Lab) -> Iterator[Case]:
    """As the service runs it, with and without graphs."""
    size, count = (DRY_SIZE, DRY_CANDIDATES) if lab.dry else (SIZE, NUM_CANDIDATES)
    yield Case(f"{count} cached, served", partial(served, lab, size, count))
    yield Case(f"{count} cached, launched", partial(launched, lab, size, count))
    new = min(count, 100)
    yield Case(f"{new} new, served", partial(encoded, lab, size, new, graphs=True))
    yield Case(f"{new} new, launched", partial(encoded, lab, size, new, graphs=False))


def build(lab: Lab, size: EncoderConfig, *, graphs: bool) -> PreparedScorer:
    """Builds the model on the device, with an interaction in each of its last three layers."""
    config = MixEncoderConfig.of_paper(
        "b",
        size,
        cls_id=101,
        sep_id=102,
        strategy="C",
        similarity="scaled_dot",
        interaction_weight=0.5,
        bi_encoder_weight=20.0,
        lexical=LexicalConfig(140.0),
    )
    torch.manual_seed(0)
    scorer = MixEncoder(config)
    assert scorer.lexical is not None
    scorer.lexical.idf.uniform_(0, 6)
    return prepare(scorer, device=lab.device, dtype=lab.dtype, graphs=graphs)


def request(size: EncoderConfig, count: int) -> ScoreBatch:
    """Random token ids of a query, and random representations of candidates in host memory, as from a cache."""
    rng = np.random.default_rng(0)
    query = rng.integers(1000, VOCAB, QUERY_TOKENS + 2).tolist()
    words = Words(
        rng.integers(1000, VOCAB, (count, 128)).astype(np.uint16), rng.integers(0, 256, (count, 128)).astype(np.uint8)
    )
    rows = torch.from_numpy(rng.standard_normal((count, size.hidden_size), np.float32))
    return ScoreBatch(Ragged.from_token_ids([query]), Ragged(rows, np.arange(count + 1), words), offsets([count]))


def launched(lab: Lab, size: EncoderConfig, count: int) -> Facts:
    """Times a request kernel by kernel, without a graph."""
    prepared, batch = build(lab, size, graphs=False), request(size, count)
    return eager(lab, lambda: prepared.score(batch))


@torch.inference_mode()
def served(lab: Lab, size: EncoderConfig, count: int) -> Facts:
    """Times a request through the graph of its bucket, and that graph alone. Raises AssertionError if it has no graph,
    or if a replay and a launch differ in a bit.
    """
    lab.require_gpu()
    prepared, batch = build(lab, size, graphs=True), request(size, count)
    facts = eager(lab, lambda: prepared.score(batch))
    runner = prepared.replay
    assert not isinstance(runner, str), runner
    assert runner.obstacle is None, runner.obstacle
    replayed, alone = (runner.compute(batch, capture=capture) for capture in (True, False))
    assert replayed is not None
    assert alone is not None
    assert torch.equal(replayed, alone), "a replay gives other bits than a launch"
    assert isinstance(prepared.scorer, MixEncoder)
    fitted = prepared.scorer.buckets().fit(batch)
    assert fitted is not None
    inputs = [torch.zeros_like(shape, device=lab.device) for shape in fitted.shapes]
    for there, table in zip(inputs, fitted.tables, strict=True):
        there[: len(table)].copy_(table)
    return {
        **{f"served_{name.removeprefix('eager_')}": value for name, value in facts.items()},
        **graphed(lab, lambda: fitted.compute(inputs)),
        "awaited_ms": back_to_back(lab, lambda: prepared.score(batch), ahead=0),
        "overlapped_ms": back_to_back(lab, lambda: prepared.score(batch), ahead=1),
    }


@torch.inference_mode()
def encoded(lab: Lab, size: EncoderConfig, count: int, *, graphs: bool) -> Facts:
    """Times the encoding of new candidates."""
    prepared, ids = build(lab, size, graphs=graphs), np.random.default_rng(0).integers(1000, VOCAB, (count, NEW_TOKENS))
    texts = Ragged.from_token_ids(ids.tolist())
    facts = eager(lab, lambda: prepared.encode_candidates(texts).values)
    return {f"encode_{name}": value for name, value in facts.items()}
