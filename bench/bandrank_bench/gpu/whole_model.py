"""A whole cross-encoder of MiniLM-L6's size, with random weights and 100 candidates per request."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from statistics import median

import numpy as np
import torch
from torch import Tensor

from bandrank.models.architectures.cross_encoder import CrossEncoder, CrossEncoderConfig
from bandrank.models.batch import ScoreBatch
from bandrank.models.encoders.config import EncoderConfig
from bandrank.models.layers.execution import Execution, Preparable
from bandrank.models.layers.packing import PackedInputs, PackedTokens, pack
from bandrank.models.layers.patterns import FULL, sparse
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.ragged import Ragged
from bandrank_bench.gpu.lab import Lab
from bandrank_bench.gpu.shape import Shape, passage_lengths
from bandrank_bench.gpu.stages import Case, Facts
from bandrank_kernels.arrays import offsets
from bandrank_kernels.transfer import to_host
from bandrank_kernels.windowed_attention import AttentionPattern, AttentionPlan, plan_attention

QUERY_TOKENS = 10
VOCAB, POSITIONS = 30522, 4224
SIZE = EncoderConfig(VOCAB, 384, 6, 12, 1536, POSITIONS)
DRY_SIZE = EncoderConfig(VOCAB, 64, 2, 2, 256, POSITIONS)
WINDOW, NUM_CANDIDATES = 4, 100
REPEATS = 10


LENGTHS = {
    "164": [164] * NUM_CANDIDATES,
    "passages": passage_lengths(NUM_CANDIDATES),
    "163": [163] * NUM_CANDIDATES,
    "4086": [4086] * NUM_CANDIDATES,
    "documents": passage_lengths(NUM_CANDIDATES, mean=1370, longest=4086),
}
DRY_LENGTHS = {"164": [9, 9, 9], "passages": [3, 7, 9]}


def cases(lab: Lab) -> Iterator[Case]:
    """What the service runs, on the lengths with goals, then variants of it."""
    size, chosen = _sizes(lab)
    for name, lengths in chosen.items():
        yield _case("ours sparse", name, partial(ours, lab, size, lengths, sparse(WINDOW), cls_only=True))
        for kind, pattern in (("sparse", sparse(WINDOW)), ("full", FULL)):
            yield _case(f"ours {kind}", name, partial(served, lab, size, lengths, pattern), ", served")
    for name, lengths in chosen.items():
        for kind, pattern, cls_only in (("sparse", sparse(WINDOW), False), ("full", FULL, True), ("full", FULL, False)):
            label = f"ours {kind}" + ("" if cls_only else ", whole last layer")
            yield _case(label, name, partial(ours, lab, size, lengths, pattern, cls_only=cls_only))


def peers(lab: Lab) -> Iterator[Case]:
    """Other systems on the same lengths."""
    size, chosen = _sizes(lab)
    for name, lengths in chosen.items():
        if len(set(lengths)) == 1:
            yield _case("paper", name, partial(paper, lab, size, lengths))
        yield _case("transformers", name, partial(transformers, lab, size, lengths))


def _sizes(lab: Lab) -> tuple[EncoderConfig, Mapping[str, Sequence[int]]]:
    return (DRY_SIZE, DRY_LENGTHS) if lab.dry else (SIZE, LENGTHS)


def _case(system: str, lengths: str, run: Callable[[], Facts], how: str = "") -> Case:
    return Case(f"{system}, {lengths}{how}", lambda: {"system": system, "lengths": lengths, **run()})


def build(
    lab: Lab, size: EncoderConfig, pattern: AttentionPattern, *, graphs: bool = False
) -> tuple[CrossEncoder, PreparedScorer]:
    """Builds the model with random weights, on the device."""
    config = CrossEncoderConfig(encoder=size, cls_id=101, sep_id=102, pattern=pattern, max_tokens=POSITIONS)
    torch.manual_seed(0)
    model = CrossEncoder(config)
    return model, prepare(model, device=lab.device, dtype=lab.dtype, graphs=graphs)


def request(lengths: Sequence[int]) -> ScoreBatch:
    """Random token ids: one query, and candidates of these lengths plus [SEP]."""
    rng = np.random.default_rng(0)
    query, *candidates = (rng.integers(1000, VOCAB, length + 1) for length in (QUERY_TOKENS, *lengths))
    return ScoreBatch(
        Ragged.from_token_ids([query.tolist()]),
        Ragged.from_token_ids([candidate.tolist() for candidate in candidates]),
        offsets([len(candidates)]),
    )


def packed(model: CrossEncoder, batch: ScoreBatch) -> PackedTokens:
    """The batch as the model packs it."""
    return pack(batch, model.config.pattern, cls_id=model.config.cls_id, sentence_token=None)


def ours(lab: Lab, size: EncoderConfig, lengths: Sequence[int], pattern: AttentionPattern, *, cls_only: bool) -> Facts:
    """Times the model eagerly from token ids in host memory, and in a graph from ids on the card."""
    (model, _), batch = build(lab, size, pattern), request(lengths)
    backend = lab.backend
    model.encoder.prepare_for(Execution(backend))

    def launched() -> Facts:
        return eager(lab, lambda: model.score_packed(batch, partial(model.launch, cls_only=cls_only)))

    facts = launched()
    for module in model.modules():
        if isinstance(module, Preparable):
            module.prepare_for(Execution(backend, graphs=True, dtype=lab.dtype))
    facts["peak_bytes"] = launched()["peak_bytes"]  # with GELU in the product, as the service runs it
    plan = plan_attention(
        packed(model, batch).rows,
        pattern,
        device=lab.device,
        dtype=lab.dtype,
        head_dim=size.head_dim,
        backend=backend,
    )
    return facts | graphed(lab, device_part(lab, model, batch, plan, cls_only=cls_only))


def served(lab: Lab, size: EncoderConfig, lengths: Sequence[int], pattern: AttentionPattern) -> Facts:
    """Times a request as the service runs it, from ids in host memory through the graph of its bucket; or says why it
    has no graph. Raises AssertionError if a replay and a launch differ in a bit.
    """
    (model, prepared), batch = build(lab, size, pattern, graphs=True), request(lengths)
    facts = eager(lab, lambda: prepared.score(batch))
    if isinstance(prepared.replay, str):
        return {"not served from a graph": prepared.replay}
    runner = prepared.replay
    named = {f"served_{name.removeprefix('eager_')}": value for name, value in facts.items()}
    if reason := runner.obstacle or (None if len(runner) else "it has more rows than are captured"):
        return {"not served from a graph": reason, **named}
    replayed, launched = (runner.compute(packed(model, batch), capture=capture) for capture in (True, False))
    assert replayed is not None
    assert launched is not None
    assert torch.equal(replayed, launched), "a replay gives other bits than a launch"
    return {
        **named,
        "awaited_ms": back_to_back(lab, lambda: prepared.score(batch), ahead=0),
        "overlapped_ms": back_to_back(lab, lambda: prepared.score(batch), ahead=1),
    }


@torch.inference_mode()
def back_to_back(lab: Lab, score: Callable[[], Tensor], *, ahead: int) -> float:
    """Milliseconds per request of many, with scores fetched. ahead: requests started before the oldest is awaited."""
    in_flight: deque[Callable[[], Tensor]] = deque()
    count = 2 if lab.dry else 5 * REPEATS
    started = time.perf_counter()
    for _ in range(count):
        in_flight.append(to_host(score()))
        if len(in_flight) > ahead:
            in_flight.popleft()()
    while in_flight:
        in_flight.popleft()()
    return (time.perf_counter() - started) / count * 1e3


def paper(lab: Lab, size: EncoderConfig, lengths: Sequence[int]) -> Facts:
    """The paper's attention in our encoder, for candidates of one length, as after padding."""
    model, _ = build(lab, size, sparse(WINDOW))
    shape = Shape(lengths[0], WINDOW, size.head_dim, size.num_heads, len(lengths), QUERY_TOKENS)
    baselines = import_module("bandrank_bench.gpu.baselines")
    plan = baselines.PaperPlan(baselines.PaperAttention(shape, device=lab.device, backend=lab.backend))
    run = device_part(lab, model, request(lengths), plan, cls_only=False)
    return {**eager(lab, run), **graphed(lab, run)}


def device_part(
    lab: Lab, model: CrossEncoder, batch: ScoreBatch, plan: AttentionPlan, *, cls_only: bool
) -> Callable[[], Tensor]:
    """Returns `score` without the host's work per request."""
    tokens = packed(model, batch)
    inputs = PackedInputs(torch.from_numpy(tokens.numbers).to(lab.device), plan, tokens.rows.num_candidates)
    return lambda: model.compute(inputs, cls_only=cls_only)


def transformers(lab: Lab, size: EncoderConfig, lengths: Sequence[int]) -> Facts:
    """BertModel with torch's attention, padded to the longest, with a mask if needed."""
    library = import_module("transformers")
    config = library.BertConfig(
        vocab_size=VOCAB,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.intermediate_size,
        max_position_embeddings=POSITIONS,
        attn_implementation="sdpa",
    )
    model = library.BertModel(config).to(lab.device, lab.dtype).eval()
    totals = torch.tensor(lengths) + QUERY_TOKENS + 3
    ids = torch.randint(1000, VOCAB, (len(lengths), int(totals.max())))
    real = torch.arange(ids.shape[1]) < totals[:, None]
    mask = None if bool(real.all()) else real.to(lab.device, torch.int64)
    here = ids.to(lab.device)

    def score() -> Tensor:
        return model(ids.to(lab.device), attention_mask=mask).pooler_output  # type: ignore[no-any-return]  # likewise

    facts = eager(lab, score)
    if mask is None:  # transformers waits for the device to read a mask, which graphs forbid
        facts |= graphed(lab, lambda: model(here, attention_mask=None).pooler_output)
    return facts


@torch.inference_mode()
def eager(lab: Lab, score: Callable[[], object]) -> Facts:
    """Milliseconds until the scores are ready, milliseconds for which the host is busy, and peak memory."""
    score()
    lab.synchronize()
    before = 0
    if not lab.dry:
        before = torch.cuda.memory_allocated(lab.device)
        torch.cuda.reset_peak_memory_stats(lab.device)
    whole, host = [], []
    for _ in range(1 if lab.dry else REPEATS):
        started = time.perf_counter()
        score()
        host.append(time.perf_counter() - started)
        lab.synchronize()
        whole.append(time.perf_counter() - started)
    peak = 0 if lab.dry else torch.cuda.max_memory_allocated(lab.device) - before
    return {"eager_ms": median(whole) * 1e3, "host_ms": median(host) * 1e3, "peak_bytes": peak}


@torch.inference_mode()
def graphed(lab: Lab, run: Callable[[], object]) -> Facts:
    """Milliseconds of the replay of a CUDA graph, or the reason why it cannot be captured."""
    try:
        return {"graph_ms": lab.median_us(lab.capture(run)) / 1e3}
    except RuntimeError as error:
        cause = error.__context__ or error  # a failed capture's own error says nothing more
        return {"graph_ms": None, "no graph": f"{type(cause).__name__}: {cause}"[:500]}
