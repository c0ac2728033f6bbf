"""What `prepare` decides about kernels, CUDA graphs and workers, and how the prepared scorer reports it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from support.decoders import tiny_decoder_reranker
from support.models import score_batch, tiny_bi_encoder, tiny_cross_encoder
from support.modernbert import tiny_sequence_cross_encoder
from support.native import needs_native
from support.precomputing import tiny_colbert, tiny_deformer, tiny_splade
from support.scorers import lookup
from support.tokenizer import SEP_ID
from support.torch_threads import torch_threads
from support.variants import random_texts
from torch import Tensor

from bandrank.models.batch import ScoreBatch
from bandrank.models.layers.linear import Linear
from bandrank.models.layers.norm import LayerNorm
from bandrank.models.layers.patterns import sparse
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.models.scorer import Scorer
from bandrank_kernels.windowed_attention import AttentionPattern

CPU = torch.device("cpu")
APART = AttentionPattern.apart()


@pytest.mark.parametrize(
    ("make", "graphs", "reason"),
    [
        (tiny_colbert, True, "a colbert is not captured"),
        (tiny_cross_encoder, False, "they are switched off"),
        (lambda: tiny_cross_encoder(pattern=sparse(4)), True, "the tensors are on cpu"),
    ],
)
def test_why_there_are_no_graphs(make: Callable[[], Scorer], graphs: bool, reason: str) -> None:
    """The reason is the architecture, the operator's choice, or whatever rules out the kernels."""
    prepared = prepare(make(), device=CPU, dtype=torch.float32, graphs=graphs)

    assert reason in (prepared.why_no_graphs() or "")
    assert prepared.graph_bytes == 0


def test_why_there_are_no_kernels() -> None:
    """Another backend was asked for, the device has none, or there is nothing to compute."""
    asked = prepare(tiny_bi_encoder(), device=CPU, dtype=torch.float32, backend="reference")
    on_cpu = prepare(tiny_bi_encoder(), device=CPU, dtype=torch.float32)
    without = prepare(lookup(man=1.0), device=CPU, dtype=torch.float32)

    assert asked.why_no_kernels == "'reference' was asked for"
    assert "the tensors are on cpu" in (on_cpu.why_no_kernels or "")
    assert without.why_no_kernels == "it has no attention"


def test_kernels_that_fail_their_trial_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain torch runs instead, without graphs, and an error in the log says why."""
    for obstacle in ("cuda_obstacle", "gpu_obstacle"):
        monkeypatch.setattr(f"bandrank.models.backends.{obstacle}", lambda _: None)
    monkeypatch.setattr("bandrank.models.backends.why_no_kernels", lambda *_, **__: None)
    monkeypatch.setattr("bandrank.models.backends.why_distrusted", lambda *_, **__: "they differ")
    scorer = tiny_cross_encoder(pattern=sparse(4))
    prepared = prepare(scorer, device=CPU, dtype=torch.float32, graphs=True)

    assert prepared.why_no_kernels == prepared.why_no_graphs() == "they differ"
    assert scorer.encoder.execution.backend == "vectorized"  # type: ignore[attr-defined]
    assert [record.levelname for record in caplog.records if "they differ" in record.getMessage()] == ["ERROR"]


@pytest.mark.parametrize(
    ("make", "own", "tried"),
    [
        (lambda: tiny_cross_encoder(pattern=sparse(4)), None, sparse(4)),
        (tiny_cross_encoder, "no kernels", APART),  # the norms run in kernels
        (tiny_deformer, "no kernels", APART),  # so do the lower layers, which read each text alone
        (tiny_sequence_cross_encoder, None, APART),  # a pair is read as one text
        (tiny_decoder_reranker, "the CUDA kernels have no causal attention", "nothing"),
    ],
)
def test_kernels_are_tried_before_any_of_them_runs(
    make: Callable[[], Scorer], own: str | None, tried: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are tried even if they do not compute the scorer's own attention, because other parts use them. A norm
    that no kernel computes raises no error.
    """
    seen: list[object] = []

    def kernels_know(pattern: AttentionPattern, **_: object) -> str | None:
        return None if pattern.shares_queries else "no kernels"

    for obstacle in ("cuda_obstacle", "gpu_obstacle"):
        monkeypatch.setattr(f"bandrank.models.backends.{obstacle}", lambda _: None)
    monkeypatch.setattr("bandrank.models.backends.why_no_kernels", kernels_know)
    monkeypatch.setattr("bandrank.models.backends.why_distrusted", lambda pattern, **_: seen.append(pattern))
    scorer = make()
    prepared = prepare(scorer, device=CPU, dtype=torch.float32, backend="cuda")

    assert prepared.why_no_kernels == own
    assert seen == ([] if tried == "nothing" else [tried])
    assert {module.execution.backend for module in scorer.modules() if isinstance(module, LayerNorm)} <= {"auto"}


def test_every_layer_is_told_how_to_compute() -> None:
    """The encoder and each norm get the backend, and linear layers lay out their weights where oneDNN is available."""
    scorer = tiny_cross_encoder()
    prepare(scorer, device=CPU, dtype=torch.float32, backend="vectorized")
    norms = [module for module in scorer.modules() if isinstance(module, LayerNorm)]
    linears = [module for module in scorer.modules() if isinstance(module, Linear)]

    assert {each.execution.backend for each in (scorer.encoder, *norms)} == {"vectorized"}
    assert {each._packed is not None for each in linears} == {torch.backends.mkldnn.is_available()}  # type: ignore[no-untyped-call]  # torch has no annotation here


def test_a_scorer_in_training_stays_so() -> None:
    """Wrapping a scorer changes neither its scores nor its mode, its gradients and its layers."""
    scorer = tiny_cross_encoder().train()
    batch = score_batch([[9, SEP_ID]], [[[9, 10, SEP_ID], [SEP_ID]]])
    prepared = PreparedScorer.in_training(scorer)
    scores = prepared(batch)

    assert torch.equal(scores, scorer(batch))
    assert scores.requires_grad
    assert scorer.training
    assert all(module._packed is None for module in scorer.modules() if isinstance(module, Linear))
    assert (prepared.device, prepared.dtype) == (CPU, torch.float32)
    assert prepared.why_no_graphs() == "it is being trained"


def test_on_a_cpu_batches_that_are_begun_are_scored_meanwhile() -> None:
    """One batch is small, one is cut into parts, and one has a long candidate that all threads share; results are asked
    for in reverse order.
    """
    prepared = prepare(tiny_cross_encoder(max_tokens=512, max_candidate_tokens=512), device=CPU, dtype=torch.float32)
    ids = torch.randint(5, 30, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [[ids[:9]], [ids[:40]] * 20, [ids], [[]]]
    batches = [score_batch([[7, 8, SEP_ID]], [group]) for group in texts]
    with torch.inference_mode(), torch_threads(2):
        assert prepared.overlaps
        expected = [prepared.scorer.score(batch) for batch in batches]
        begun = [prepared.begin(batch) for batch in batches]
        scores = [results() for results in reversed(begun)][::-1]
    with torch_threads(1):
        assert not prepared.overlaps

    for each, own in zip(scores, expected, strict=True):
        torch.testing.assert_close(each, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_parts_of_a_batch_are_scored_side_by_side(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of one thread each give the scores of the whole batch up to rounding; while gradients are recorded, the
    batch is not cut.
    """
    prepared = prepare(tiny_cross_encoder(max_tokens=512), device=CPU, dtype=dtype)
    queries, candidates = random_texts(prepared.scorer)
    batch = score_batch(queries, [group * 9 for group in candidates])
    seen: list[int] = []
    score = prepared.scorer.score

    def watched(part: ScoreBatch) -> Tensor:
        seen.append(torch.get_num_threads())
        return score(part)

    monkeypatch.setattr(prepared.scorer, "score", watched)
    with torch.inference_mode(), torch_threads(1):
        whole = prepared(batch)
    with torch.inference_mode(), torch_threads(3):
        parts = prepared(batch)
    with torch_threads(3):
        prepared(batch)

    assert seen == [1] + [1] * 3 + [3]
    assert (parts - whole).abs().max() <= (1e-5 if dtype == torch.float32 else 0.05)


@needs_native
@pytest.mark.parametrize(
    ("tiny", "query", "candidates", "threads"),
    [
        (tiny_decoder_reranker, 80, 9, 3),
        (tiny_decoder_reranker, 80, 4, 3),
        (tiny_decoder_reranker, 80, 50, 1),
        (tiny_colbert, 30, 50, 3),
    ],
)
def test_what_all_candidates_need_is_not_computed_by_each_worker(
    tiny: Callable[[], Scorer], query: int, candidates: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads share a batch, however few its candidates, if most of its work is their query."""
    prepared = prepare(tiny(), device=CPU, dtype=torch.int8)
    batch = score_batch([[SEP_ID] * query], [[[SEP_ID] * 33] * candidates])
    batch = replace(batch, candidates=prepared.scorer.encode_candidates(batch.candidates))
    seen: list[int] = []
    score = prepared.scorer.score
    monkeypatch.setattr(prepared.scorer, "score", lambda part: seen.append(torch.get_num_threads()) or score(part))
    with torch.inference_mode(), torch_threads(3):
        prepared.score(batch)

    assert set(seen) == {threads}


@pytest.mark.parametrize("tiny", [tiny_bi_encoder, partial(tiny_splade, query_table=True)])
def test_a_batch_of_cheap_comparisons_is_not_cut(tiny: Callable[[], Scorer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part would encode their query again; of several queries, workers encode different ones."""
    prepared = prepare(tiny(), device=CPU, dtype=torch.float32)
    texts = [[[SEP_ID, 9 + number % 50, SEP_ID] for number in range(500)]] * 2
    batch = score_batch([[SEP_ID] * 9] * 2, texts)
    batch = replace(batch, candidates=prepared.scorer.encode_candidates(batch.candidates))
    alone = ScoreBatch(batch.queries.part(slice(0, 1)), batch.candidates.part(slice(0, 500)), batch.cu_candidates[:2])
    seen: list[int] = []
    score = prepared.scorer.score
    monkeypatch.setattr(prepared.scorer, "score", lambda part: seen.append(len(part.candidates)) or score(part))
    with torch.inference_mode(), torch_threads(2):
        prepared.score(alone)
        prepared.score(batch)

    assert seen[0] == 500
    assert len(seen) > 2
    assert sum(seen[1:]) == 1000
