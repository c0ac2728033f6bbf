"""Scores the candidates of many queries offline with the service's engine: its batches, its caches, its fusion."""

import asyncio
import atexit
import math
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Self

from bandrank.assembly import add_prepared, representation_cache
from bandrank.control_groups import GROUPS, MOUNTS, folders
from bandrank.engine.engine import Engine
from bandrank.engine.options import Options
from bandrank.engine.policy import Role
from bandrank.engine.ranking import Stage
from bandrank.engine.served import ServedModel
from bandrank.errors import ScoringFailed
from bandrank.metrics import Metrics
from bandrank.models.loading import LoadedModel
from bandrank.models.prepared import PreparedScorer, prepare
from bandrank.settings import Settings
from bandrank_training.errors import BadInput
from bandrank_training.placement import CPU, Placement
from bandrank_training.start import load_fast

CANDIDATES_IN_FLIGHT = 1024  # enough to fill batches, few enough that the first question's scores come soon
MEMORY_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}  # by the version of control groups


def usable_memory(groups: Path = GROUPS, mounts: Path = MOUNTS) -> int:
    """The bytes of memory of the machine, or of the process's control groups if these may use less.

    groups, mounts: as in `control_groups.folders`.
    """
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for version, folder in folders("memory", groups, mounts):
        with suppress(OSError, ValueError):  # "max" is not a number
            least = min(least, int((folder / MEMORY_FILES[version]).read_text(encoding="ascii")))
    return least


SETTINGS = Settings(
    cache_dtype="float32",
    # For representations; if they need more, the least recently used are dropped and computed again.
    cache_memory_bytes=min(2**34, usable_memory() // 4),
    max_tokenizing_characters=2**62,  # no other client needs room
)


@dataclass(frozen=True)
class Question:
    """A query and the candidates to score for it."""

    query: str
    candidates: Sequence[str]


class OfflineScorer:
    """Scores questions with one model, or with a fast one and one that adds to its scores.

    Representations are kept between calls of `score`.
    """

    def __init__(
        self,
        models: Sequence[tuple[LoadedModel, PreparedScorer]],
        *,
        max_candidate_tokens: int | None = None,
        pooled: bool = False,
    ) -> None:
        """max_candidate_tokens: the most token ids read of a candidate; None for the models' limits.  pooled: as in
        the service's options.
        """
        self._models, self._max_candidate_tokens = models, max_candidate_tokens
        self._options = Options(pooled=pooled)
        self.forget()

    @classmethod
    def in_training(cls, model: LoadedModel) -> Self:
        """Scores with a scorer's current weights, without its fusion, and leaves the scorer unchanged."""
        return cls([(model, PreparedScorer.in_training(model.scorer))])

    def forget(self) -> None:
        """Drops the representations."""
        self._caches = [
            representation_cache(model, SETTINGS, redis=None, metrics=Metrics()) for model, _ in self._models
        ]

    def score(self, questions: Iterable[Question]) -> Iterator[list[float]]:
        """Yields the raw scores of each question's candidates in the order given; reads questions lazily.

        A scoring thread runs until the iterator ends or is closed. Must not be called inside a running event loop.
        Raises BadInput for a question that cannot be scored.
        """
        tasks: deque[tuple[int, asyncio.Task[list[float]]]] = deque()
        served, runner = self._serve(), asyncio.Runner()
        stop = partial(_stop, served.engine)
        atexit.register(stop)
        try:
            for question in questions:
                task = runner.get_loop().create_task(_scores(served, question, self._options))
                tasks.append((len(question.candidates) + 1, task))
                while sum(size for size, _ in tasks) > CANDIDATES_IN_FLIGHT:
                    yield runner.run(asyncio.wait_for(tasks.popleft()[1], None))
            while tasks:
                yield runner.run(asyncio.wait_for(tasks.popleft()[1], None))
        finally:
            atexit.unregister(stop)
            if not sys.is_finalizing():
                with runner:
                    for _, task in tasks:
                        if not task.cancel():
                            task.exception()  # or asyncio would log it as never retrieved
                    runner.run(served.engine.close())

    def _serve(self) -> ServedModel:
        """Serves the models as the stages of one, on a started engine that refuses nothing."""
        last, prepared = self._models[-1]
        engine = Engine(prepared.device, max_waiting_rows=math.inf, request_timeout_s=math.inf)
        stages = []
        for (model, scorer), cache in zip(self._models, self._caches, strict=True):
            role = Role(model.name, weight=model.fusion.weight if model.fusion else None)
            encoder = model.texts(self._max_candidate_tokens)
            stages.append(Stage(role, add_prepared(engine, model.name, scorer, encoder, SETTINGS, cache=cache)))
        engine.start()
        return ServedModel(last.name, tuple(stages), engine, prepared.dtype)


def score_offline(
    model: LoadedModel,
    placement: Placement = CPU,
    *,
    max_candidate_tokens: int | None = None,
    pooled: bool = False,
) -> OfflineScorer:
    """Makes an offline scorer of the model as it is served: after the fast scorer that it is fused with, if any.

    max_candidate_tokens, pooled: as in OfflineScorer.  Raises BadCheckpoint, and BadInput for a dtype that cannot be
    computed, or if there is no pooled form.
    """
    fast = load_fast(model)
    models = [model] if fast is None else [fast, model]
    if pooled and all(each.scorer.lexical_evidence is None for each in models):
        raise BadInput(f"{model.name} has no lexical evidence, and so no pooled form")
    try:
        prepared = [(each, prepare(each.scorer, device=placement.device, dtype=placement.dtype)) for each in models]
    except ValueError as error:  # int8 is not available
        raise BadInput(str(error)) from error
    return OfflineScorer(prepared, max_candidate_tokens=max_candidate_tokens, pooled=pooled)


def _stop(engine: Engine) -> None:
    """Ends the scoring thread of an unfinished iterator at exit, when an event loop no longer can."""
    engine.queue.close(ScoringFailed("the process ends"))
    engine.worker.join()


async def _scores(served: ServedModel, question: Question, options: Options) -> list[float]:
    try:
        ranking = await served.rank(question.query, question.candidates, options=options)
    except ScoringFailed as error:
        raise BadInput(f"query {question.query[:80]!r}: {error}") from error
    return [candidate.score for candidate in sorted(ranking.candidates, key=attrgetter("index"))]
