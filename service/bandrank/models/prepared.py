"""Scorers on their device, ready for inference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from bandrank.models.arriving import Arriving
from bandrank.models.backends import backend_for, runs_flash, why_no_cuda, why_no_native_attention
from bandrank.models.batch import ScoreBatch
from bandrank.models.bfloat16 import use_bfloat16, why_not_bfloat16
from bandrank.models.buckets import Buckets
from bandrank.models.graphs import GraphRunner
from bandrank.models.layers.execution import Execution, Preparable
from bandrank.models.parts import COARSE, FINE, MIN_PART_ROWS, Cut, split
from bandrank.models.placement import name_of
from bandrank.models.quantised import adapt, quantise
from bandrank.models.ragged import Ragged
from bandrank.models.scorer import Scorer
from bandrank.models.workers import Workers, workers
from bandrank_kernels import Backend
from bandrank_kernels.arrays import Ints
from bandrank_kernels.graphs import CudaGraphs, GraphDevice
from bandrank_kernels.native.library import native
from bandrank_kernels.transfer import to_host
from bandrank_kernels.windowed_attention import why_not_native

Batch = TypeVar("Batch")

# Modules of a scorer that keep their dtype: they are small, and scores come out of them. Of a second scorer, the same
# modules keep theirs.
KEPT = {"dense", "head", "lexical", "of_queries"}


@runtime_checkable
class Capturable(Protocol):
    """A scorer that packs batches on the host and then only launches kernels, so that CUDA graphs can replay them.

    Only the scorer and its buckets need to know what a packed batch is; a batch may become several.
    """

    def score_packed(self, batch: ScoreBatch, run: Callable[[Any], Tensor]) -> Tensor:
        """Like `Scorer.score`, with `run` computing the scores of each packed batch."""

    def launch(self, packed: Any) -> Tensor:
        """The scores of a packed batch, launched kernel by kernel."""

    def buckets(self) -> Buckets[Any]:
        """The buckets of packed batches."""

    @property
    def why_not_captured(self) -> str | None:
        """Why its launches, on its device and in its dtype, cannot be replayed, as a clause; None if they can."""


@runtime_checkable
class ReadsPassages(Protocol):
    """A scorer that scores a long candidate by the best of its passages."""

    def score_passages(self, batch: ScoreBatch, run: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """Like `Scorer.score`, with `run` in place of `launch`, and (C,) int64 the index of each best passage."""

    def launch(self, packed: Any) -> Tensor: ...
    def passage_bounds(self, query_tokens: int, candidate_tokens: int) -> list[tuple[int, int]]: ...


@runtime_checkable
class CapturesTexts(Protocol):
    """A scorer whose buckets also take candidates to encode, so that CUDA graphs can replay that too."""

    def encode_packed(self, tokens: Ragged, run: Callable[[Ragged], Tensor]) -> Ragged:
        """Like `Scorer.encode_candidates`, with `run` computing the rows of all candidates."""

    def launch_texts(self, tokens: Ragged) -> Tensor:
        """The rows of candidates, launched kernel by kernel."""


@dataclass(frozen=True, eq=False)
class PreparedScorer:
    """A scorer on its device, as `prepare` returns it.

    scorer: for its templates, costs and config.
    why_no_kernels: the reason, as a clause, why no CUDA kernels compute attention, ours or torch's; None if they do.
    replay: replays batches from CUDA graphs; or the reason, as a clause, why they are not replayed.
    packed: whether its linear layers are packed for the CPU kernels.
    """

    scorer: Scorer
    device: torch.device
    dtype: torch.dtype
    why_no_kernels: str | None
    replay: GraphRunner[Any] | str
    packed: bool = False

    @classmethod
    def in_training(cls, scorer: Scorer) -> Self:
        """Wraps a scorer that is being trained, without changing it, so that it can be measured in between."""
        weight = next(scorer.parameters(), torch.empty(0))
        without_kernels = why_no_cuda(scorer, scorer.attention)
        return cls(scorer, weight.device, weight.dtype, without_kernels, "it is being trained")

    @property
    def precision(self) -> str:
        """The precision it computes in, in a few words."""
        name = name_of(self.dtype)
        if self.packed:
            exact = ", ".join(sorted(self.scorer.exact_layers)) if self.dtype == torch.int8 else ""
            return f"{name} by CPU kernels, {native().variant}" + (f"; {exact} in float32" if exact else "")
        return f"{name}{'; float16 may overflow' if self.scorer.overflows_float16 else ''}"

    @property
    def attention(self) -> str:
        """What computes its attention, in a few words."""
        if self.why_no_kernels is None:
            return "torch's FlashAttention" if runs_flash(self.scorer) else "CUDA kernels"
        if not self.packed:
            return f"plain torch: {self.why_no_kernels}"
        reason = why_no_native_attention(self.scorer)
        return "CPU kernels" if reason is None else f"plain torch: {reason}"

    @property
    def graph_bytes(self) -> int:
        """Bytes of device memory that CUDA graphs hold."""
        return 0 if isinstance(self.replay, str) else self.replay.graph_bytes

    def why_no_graphs(self) -> str | None:
        """The reason, as a clause, why batches are launched kernel by kernel; None if CUDA graphs replay them. The
        answer changes when a capture fails, and when a later one succeeds.
        """
        return self.replay if isinstance(self.replay, str) else self.replay.obstacle

    def capture_usual(self, max_rows: int) -> None:
        """Captures the CUDA graphs of usual requests, if batches are replayed; takes some seconds.

        max_rows: the most rows that a batch will have.
        """
        if not isinstance(self.replay, str):
            self.replay.capture_usual(max_rows)

    def encode_candidates(self, tokens: Ragged) -> Ragged:
        """Representations of candidates, as from `Scorer.encode_candidates`."""
        runner, scorer = self._runner, self.scorer
        if runner is None or not isinstance(scorer, CapturesTexts):
            return self._encode(scorer.encode_candidates, tokens)
        return scorer.encode_packed(tokens, _replaying(runner, scorer.launch_texts))

    def encode_queries(self, tokens: Ragged) -> Ragged:
        """Vectors of queries, as from the `encode_queries` of a scorer that embeds."""
        if self.scorer.embeds and not self.scorer.encodes_queries_apart:
            return self.encode_candidates(tokens)
        return self._encode(self.scorer.encode_queries, tokens)

    @property
    def overlaps(self) -> bool:
        """Whether `begin` returns before the scores are computed, so that the caller is free meanwhile."""
        if self.device.type == "cuda":
            # Without graphs, stored representations are not copied from pinned memory.
            return not self.scorer.precomputes or self.why_no_graphs() is None
        return self._splits and self._workers.count > 1

    def begin(self, batch: ScoreBatch) -> Arriving[tuple[slice, Tensor], Tensor]:
        """Starts `score`, and gives the scores, in host memory. Early come runs of candidates and their scores."""
        if not self._splits:
            return Arriving(to_host(self.score(batch).float()))
        begun = self._begin(lambda part: (self.scorer.score(part).float(),), batch)
        return begun.read(lambda whole: whole[0], lambda pieces: ((run, scores) for run, (scores,) in pieces))

    def begin_passages(self, batch: ScoreBatch) -> Arriving[tuple[slice, Sequence[Tensor]], Sequence[Tensor]]:
        """Like `begin`; the scores come with each candidate's best passage, (C,) int64 indices into its
        `passage_bounds`.
        """
        scorer = self._with_passages

        def compute(part: ScoreBatch) -> tuple[Tensor, Tensor]:
            runner, launch = self._runner, scorer.launch
            scores, passages = scorer.score_passages(part, launch if runner is None else _replaying(runner, launch))
            return scores.float(), passages

        if self._splits:
            return self._begin(compute, batch)
        arriving = [*map(to_host, compute(batch))]
        return Arriving(lambda: [each() for each in arriving])

    def score(self, batch: ScoreBatch) -> Tensor:
        """(C,) float32 raw scores, as from `Scorer.score`."""
        if self._splits:
            return self.begin(batch)()
        if (runner := self._runner) is None:
            return self.scorer.score(batch)
        scorer = cast("Capturable", self.scorer)  # `prepare` makes runners for no other
        return scorer.score_packed(batch, _replaying(runner, scorer.launch))

    @property
    def reads_passages(self) -> bool:
        """Whether the scorer can say which passage of a candidate is best."""
        return isinstance(self.scorer, ReadsPassages)

    def passage_bounds(self, query_tokens: int, candidate_tokens: int) -> list[tuple[int, int]]:
        """The passages of a candidate beside a query, each from its first token id up to the one behind its last."""
        return self._with_passages.passage_bounds(query_tokens, candidate_tokens)

    def __call__(self, batch: ScoreBatch) -> Tensor:
        """Like `score`, from token ids on both sides."""
        return self.score(ScoreBatch(batch.queries, self.encode_candidates(batch.candidates), batch.cu_candidates))

    @property
    def _with_passages(self) -> ReadsPassages:
        assert isinstance(self.scorer, ReadsPassages), "a scorer without passages was asked for one. This is a bug."
        return self.scorer

    @property
    def _splits(self) -> bool:
        """Whether parts of a batch run side by side on the workers of a CPU. A decoder in floats is not split: each
        part would compute again what precedes all candidates.
        """
        if self.device.type != "cpu" or not isinstance(self.replay, str):
            return False
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return False
        return self.packed or not self.scorer.encoder.config.causal

    def _encode(self, encode: Callable[[Ragged], Ragged], tokens: Ragged) -> Ragged:
        if not self._splits or not self.scorer.precomputes:
            return encode(tokens)
        cut = self._split(tokens.lengths, in_order=False)
        return cut.joined(self._workers.run(encode, cut.parts(tokens)))

    @property
    def _workers(self) -> Workers:
        return workers(torch.get_num_threads())

    def _begin(
        self, compute: Callable[[ScoreBatch], tuple[Tensor, ...]], batch: ScoreBatch
    ) -> Arriving[tuple[slice, Sequence[Tensor]], Sequence[Tensor]]:
        """Starts to compute tensors with a row for each candidate, in parts side by side."""
        lengths, of_queries = batch.candidates.lengths, batch.queries.lengths
        cut = self._cut(batch)
        batches = cut.batches(batch)
        shared = len(batches) == 1 and lengths.sum() + of_queries.sum() >= 2 * MIN_PART_ROWS
        begun = self._workers.begin_together(compute, batches[0]) if shared else self._workers.begin(compute, batches)
        return begun.read(
            lambda whole: [cut.concatenated(results) for results in zip(*whole, strict=True)],
            lambda pieces: ((cut.runs[part], results) for part, results in pieces if cut.order is None),
        )

    def _cut(self, batch: ScoreBatch) -> Cut:
        """How workers share a batch: not at all if comparing candidates with its only query, which each worker would
        encode, costs less than the smallest part.
        """
        lengths, query_tokens = batch.candidates.lengths, int(batch.queries.lengths.max(initial=0))
        usual = max(1, int(lengths.mean())) if len(lengths) else 1
        of_each = self.scorer.num_rows(query_tokens, usual)
        several = len(batch.queries) > 1
        if not several and len(lengths) * of_each < MIN_PART_ROWS:
            return Cut([slice(0, len(lengths))])
        again = usual * self.scorer.query_rows(query_tokens) / of_each  # in rows of candidates
        return self._split(lengths, in_order=several, again=again)

    def _split(self, lengths: Ints, *, in_order: bool, again: float = 0.0) -> Cut:
        grain = FINE if self.packed else COARSE
        return split(lengths, self._workers.count, grain, in_order=in_order, again=again)

    @property
    def _runner(self) -> GraphRunner[Any] | None:
        """What replays batches from CUDA graphs; None if they are not replayed."""
        if isinstance(self.replay, str) or torch.is_grad_enabled() or torch.is_autocast_enabled(self.device.type):
            return None
        return self.replay


def prepare(
    scorer: Scorer,
    *,
    device: torch.device,
    dtype: torch.dtype,
    backend: Backend = "auto",
    graphs: bool | GraphDevice = False,
) -> PreparedScorer:
    """Moves a scorer to `device` for inference, freezes its weights in `dtype` (modules in `KEPT` keep theirs), and
    tells each layer that can compute in several ways which one to use.

    The caller may still read the scorer's templates, costs and weights, but must not change it.
    backend: the kernels' backend; "auto" and "cuda" fall back to plain torch where kernels cannot run, or where a trial
    shows that they compute something else; `why_no_kernels` gives the reason.
    dtype: int8 is for the CPU kernels (`quantise`, `adapt`), with all other computation in float32. Raises ValueError
    where they cannot compute it. bfloat16 on a CPU is for them too (`use_bfloat16`), and for torch where they cannot.
    graphs: whether batches are replayed from CUDA graphs where possible, or the device to capture them on.
    """
    if dtype == torch.int8 and device.type != "cpu":
        raise ValueError(f"int8 is for a CPU, not for {device}")
    scorer.to(device).eval().requires_grad_(requires_grad=False)
    in_bfloat16 = dtype == torch.bfloat16 and device.type == "cpu" and backend != "reference"
    in_bfloat16 = in_bfloat16 and why_not_bfloat16(scorer) is None
    packed = dtype == torch.int8 or in_bfloat16
    floats = torch.float32 if packed else dtype
    if in_bfloat16:
        use_bfloat16(scorer)
    elif packed:
        quantise(scorer)
    for side in scorer.sides:
        for name, module in side.named_children():
            if name not in KEPT:
                module.to(floats)
    if dtype == torch.int8:
        adapt(scorer)
    if packed:
        encoders = [side.encoder.config for side in scorer.sides if side.encoder.config.num_layers]
        refused = any(why_not_native(device, floats, encoder.head_dim) for encoder in encoders)
        backend = "vectorized" if refused else "native"
    backend, without_kernels = backend_for(scorer, backend)
    replay = _replay_of(scorer, without_kernels, device, graphs=graphs)
    execution = Execution(backend, graphs=not isinstance(replay, str), stores=scorer.precomputes, dtype=floats)
    for module in scorer.modules():
        if isinstance(module, Preparable):
            module.prepare_for(execution)
    return PreparedScorer(scorer, device, dtype, without_kernels, replay, packed)


def _replaying(runner: GraphRunner[Any], launch: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]:
    """The function that replays batches, and launches those without a bucket."""

    def run(batch: Batch) -> Tensor:
        results = runner.compute(batch)
        return launch(batch) if results is None else results

    return run


def _replay_of(
    scorer: Scorer, without_kernels: str | None, device: torch.device, *, graphs: bool | GraphDevice
) -> GraphRunner[Any] | str:
    """What replays batches of a scorer; or the reason, as a clause, why nothing does."""
    if not isinstance(scorer, Capturable):
        return f"a {scorer.architecture} is not captured"
    if graphs is False:
        return "they are switched off"
    if reason := without_kernels or scorer.why_not_captured:
        return reason
    return GraphRunner(scorer.buckets(), CudaGraphs(device) if graphs is True else graphs)
